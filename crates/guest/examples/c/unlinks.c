/* Prints path and result of five unlinks in a guest: unlinks TARGET */
#include <kpat_guest.h>
#include <stdio.h>
#include <string.h>

struct kept {
	char path[128];
};

static int unlinks;

static int entered(struct kpat_guest *guest, int32_t handle, struct kpat_regs *regs)
{
	/* A system call gets the registers of the process; rdi is their fifteenth. */
	uint64_t path = 0;
	struct kept *kept = kpat_guest_data(guest, sizeof(*kept));

	(void)handle;
	kpat_guest_read(guest, regs->rdi + 14 * 8, &path, sizeof(path));
	if (kpat_guest_string(guest, path, kept->path, sizeof(kept->path)) < 0)
		strcpy(kept->path, "?");
	printf("unlink %s\n", kept->path);
	return 0;
}

static int returned(struct kpat_guest *guest, int32_t handle, struct kpat_regs *regs)
{
	struct kept *kept = kpat_guest_data(guest, sizeof(*kept));

	printf("unlinked %s %ld\n", kept->path, (long)regs->rax);
	if (++unlinks == 5) {
		kpat_guest_unregister_xrp(guest, handle);
		kpat_guest_stop(guest);
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct kpat_guest *guest = argc > 1 ? kpat_guest_attach(argv[1]) : NULL;

	if (!guest || kpat_guest_register_xrp(guest, "__x64_sys_unlink", entered, returned, 8) < 0) {
		fprintf(stderr, "%s\n", kpat_guest_error(guest));
		return 1;
	}
	printf("waiting\n");
	fflush(stdout);
	int ended = kpat_guest_loop(guest);
	return kpat_guest_detach(guest) || ended;
}
