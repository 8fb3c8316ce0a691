/* What the kernel does when a program opens a device or registers memory, and the emulated device does not:
 *
 * - a registration keeps the pages that it was made of. Here those of memory that the device only reads: the
 *   device gets a copy, which is registered under the address of the memory;
 * - registered memory counts against RLIMIT_MEMLOCK;
 * - the device's file may be out of reach for this user;
 * - before Linux 5.13, a process that has registered memory must not fork unless libibverbs was asked to care for that,
 *   which has to be before the first registration.
 *
 * It is preloaded as another libibverbs.so.1, in front of the emulated one, which it calls. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define PAGE 4096
#define REGIONS 4096
/* IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE */
#define WRITES 3

struct region {
	void *region;
	void *copy;
	size_t copied;
	size_t length;
};

static struct region regions[REGIONS];
static size_t locked;
static int registered;
static int cares_for_forks;

/* The function behind this library. Some have two versions, with other structures, of which this is the present one. Asked for
 * no version, C libraries before 2.36 find the older one here. Functions that came later have one version, which is not this. */
static void *next(const char *name)
{
	void *present = dlvsym(RTLD_NEXT, name, "IBVERBS_1.1");

	return present ? present : dlsym(RTLD_NEXT, name);
}

/* As enum ibv_fork_status: disabled, enabled. */
int ibv_is_fork_initialized(void)
{
	int (*status)(void) = next("ibv_is_fork_initialized");

	return getenv("KERNEL_SHARES_PAGES") ? cares_for_forks : status();
}

int ibv_fork_init(void)
{
	if (registered)
		return EINVAL;
	cares_for_forks = 1;
	return 0;
}

void *ibv_open_device(void *device)
{
	void *(*open)(void *) = next("ibv_open_device");
	if (getenv("KERNEL_DENIES")) {
		errno = EACCES;
		return NULL;
	}
	return open(device);
}

void *ibv_reg_mr(void *domain, void *memory, size_t length, int access)
{
	void *(*register_at)(void *, void *, size_t, uint64_t, int) = next("ibv_reg_mr_iova");
	struct rlimit limit;
	struct region *found = regions;
	size_t before = (uintptr_t)memory % PAGE;

	registered = 1;
	getrlimit(RLIMIT_MEMLOCK, &limit);
	if (getenv("KERNEL_LIMITS") && locked + length > limit.rlim_cur) {
		errno = ENOMEM;
		return NULL;
	}
	while (found->region)
		if (++found == regions + REGIONS)
			abort();
	found->copy = NULL;
	if (!(access & WRITES)) {
		found->copied = length + before;
		found->copy = mmap(NULL, found->copied, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		memcpy((char *)found->copy + before, memory, length);
	}
	found->length = length;
	found->region = register_at(domain, found->copy ? (char *)found->copy + before : memory, length,
				    (uintptr_t)memory, access);
	if (found->region)
		locked += length;
	return found->region;
}

int ibv_dereg_mr(void *region)
{
	int (*deregister)(void *) = next("ibv_dereg_mr");
	int result = deregister(region);

	for (struct region *found = regions; !result && found != regions + REGIONS; found++)
		if (found->region == region) {
			locked -= found->length;
			found->region = NULL;
			if (found->copy)
				munmap(found->copy, found->copied);
			break;
		}
	return result;
}
