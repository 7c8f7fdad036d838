/* A kernel of nothing but a loop, for probes in a guest that is no Linux: it turns on 64-bit mode and calls work(n, text) for ever, which returns 3 n. The
 * last n is in `counter`. Two functions come after each other: work calls inner(n), which returns 2 n. */
	.section .note, "a"
	.long 4, 8, 18			/* name and description bytes, XEN_ELFNOTE_PHYS32_ENTRY */
	.asciz "Xen"
	.quad start

	.text
	.code32
	.globl start
start:
	cli
	movl $table3, table4
	orl $3, table4
	movl $table2, table3
	orl $3, table3
	movl $0x83, table2
	movl $table4, %eax
	movl %eax, %cr3
	movl %cr4, %eax
	orl $0x20, %eax
	movl %eax, %cr4
	movl $0xc0000080, %ecx
	rdmsr
	orl $0x100, %eax
	wrmsr
	movl %cr0, %eax
	orl $0x80000001, %eax
	movl %eax, %cr0
	lgdt descriptors
	ljmp $8, $long
	.code64
long:
	movw $16, %ax
	movw %ax, %ds
	movw %ax, %es
	movw %ax, %ss
	movq $top, %rsp
	xorl %ebx, %ebx
again:
	incq %rbx
	movq %rbx, counter
	movq %rbx, %rdi
	movq $text, %rsi
	testb $1, %bl
	jz 1f
	movq $other, %rsi
1:	call work
	movl $20000, %ecx
2:	pause
	loop 2b
	jmp again

	.globl work, inner, counter
	.type work, @function
work:
	pushq %rdi
	call inner
	popq %rdi
	addq %rdi, %rax
	ret
	.type inner, @function
inner:
	leaq (%rdi, %rdi), %rax
	ret

	.section .rodata
text:	.asciz "even"
other:	.asciz "odd"
	.balign 8
segments:
	.quad 0, 0x00af9a000000ffff, 0x00cf92000000ffff
descriptors:
	.word 23
	.long segments

	.bss
	.balign 4096
table4:	.skip 4096
table3:	.skip 4096
table2:	.skip 4096
	.skip 4096
top:
	.type counter, @object
counter: .skip 8
