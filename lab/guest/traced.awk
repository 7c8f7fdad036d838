# Lines of the kernel's tracer (`trace`), for a test: calls counted by function, processor and task; of tracepoints event, processor, context, time, task and
# some of its words.
/^#/ { next }
{
	for (i = 1; i <= NF; i++)
		if ($i ~ /^\[0/)
			break
	task = $1
	for (j = 2; j < i; j++)
		task = task "_" $j
	sub(/.*-/, "", task)
	cpu = substr($i, 2, 3) + 0
	at = $(i + 2)
	name = $(i + 3)
	sub(/:$/, "", at)
	sub(/:$/, "", name)
}
$NF ~ /^<-/ {
	calls[name " " cpu " " task]++
	next
}
{
	words = ""
	for (j = i + 4; j <= NF; j++)
		if ($j ~ /^(len|prev_pid|next_pid)=/)
			words = words " " $j
	print "traced", name, cpu, $(i + 1), at, task words
}
END {
	for (of in calls)
		print "called", of, calls[of]
}
