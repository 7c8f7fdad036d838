/* Counts ten opens of files in a guest, then takes the probe out: opens TARGET */
#include <kpat_guest.h>
#include <stdio.h>

static int opens;

static int opened(struct kpat_guest *guest, int32_t handle, struct kpat_regs *regs)
{
	(void)regs;
	if (++opens == 10) {
		kpat_guest_unregister_xp(guest, handle);
		kpat_guest_stop(guest);
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct kpat_guest *guest = argc > 1 ? kpat_guest_attach(argv[1]) : NULL;

	if (!guest || kpat_guest_register_xp(guest, "__x64_sys_openat", opened, NULL) < 0) {
		fprintf(stderr, "%s\n", kpat_guest_error(guest));
		return 1;
	}
	printf("waiting\n");
	fflush(stdout);
	int ended = kpat_guest_loop(guest);
	printf("%d opens, ended by %d\n", opens, ended);
	return kpat_guest_detach(guest) || ended;
}
