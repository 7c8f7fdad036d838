/* Handlers for kpat guest attach: counts the calls of each function that it is given, and ends with the first of them that had N.
 *   cc -shared -fPIC -o handlers.so handlers.c -lkpat_guest
 *   kpat guest attach web1 ./handlers.so N FUNCTION...
 */
#include <kpat_guest.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST 16

static long wanted;
static struct {
	int32_t handle;
	const char *name;
	long calls;
} all[MOST];

static int called(struct kpat_guest *guest, int32_t handle, struct kpat_regs *regs)
{
	(void)regs;
	for (int n = 0; n < MOST && all[n].name; n++) {
		if (all[n].handle != handle || ++all[n].calls != wanted)
			continue;
		printf("%s %ld\n", all[n].name, all[n].calls);
		fflush(stdout);
		kpat_guest_stop(guest);
	}
	return 0;
}

int kpat_guest_handlers(struct kpat_guest *guest, int argc, char **argv)
{
	if (argc < 2 || argc > MOST)
		return 2;
	wanted = atol(argv[0]);
	for (int n = 0; n + 1 < argc; n++) {
		all[n].name = argv[n + 1];
		all[n].handle = kpat_guest_register_xp(guest, argv[n + 1], called, NULL);
		if (all[n].handle < 0)
			return 1;
	}
	return 0;
}
