/*
 * Reads the files of a device by every call of the C library that takes a path or lists a folder:
 * sysfs.c DEVICE [UVERBS]. Like the children of verbs programs, it does not use libibverbs.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "check.h"

#define FAILS(call, with) CHECK((errno = 0, (call) < 0) && errno == (with))
#define NONE(call, with) CHECK((errno = 0, !(call)) && errno == (with))

#define CLASS "/sys/class/infiniband"
/* Entries of the GID table. */
enum { GIDS = 16 };
static char own[300], gids[400], state[400];

static void by_path(void)
{
	struct stat st, other;
	struct statx x;
	char text[PATH_MAX + 1];

	CHECK(stat(CLASS, &st) == 0 && S_ISDIR(st.st_mode));
	CHECK(lstat(own, &st) == 0 && S_ISLNK(st.st_mode));
	CHECK(stat(own, &st) == 0 && S_ISDIR(st.st_mode) && st.st_ino);
        CHECK(stat(state, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 0777) == 0444 &&
              st.st_size > 0);
        CHECK(fstatat(AT_FDCWD, state, &other, 0) == 0 && other.st_ino == st.st_ino &&
              other.st_dev == st.st_dev);
        CHECK(statx(AT_FDCWD, state, 0, STATX_BASIC_STATS, &x) == 0 && x.stx_ino == st.st_ino &&
              S_ISREG(x.stx_mode));
        CHECK(statx(AT_FDCWD, own, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &x) == 0 &&
              S_ISLNK(x.stx_mode));
        snprintf(text, sizeof(text), "%s/", own);
	CHECK(lstat(text, &st) == 0 && S_ISDIR(st.st_mode));

	CHECK(access(state, R_OK) == 0 && access(own, R_OK | X_OK) == 0 && access(state, F_OK) == 0);
	FAILS(access(state, W_OK), EACCES);
	FAILS(access(own, W_OK), EACCES);
        CHECK(faccessat(AT_FDCWD, state, R_OK, 0) == 0 && euidaccess(state, R_OK) == 0 &&
              eaccess(state, R_OK) == 0);
        FAILS(faccessat(AT_FDCWD, state, X_OK, 0), EACCES);

	ssize_t n = readlink(own, text, PATH_MAX);
	CHECK(n > 0);
	text[n > 0 ? n : 0] = 0;
	CHECK(strncmp(text, "../../devices/pci", 17) == 0 && readlinkat(AT_FDCWD, own, text, 4) == 4);
	FAILS(readlink(state, text, PATH_MAX), EINVAL);

	char *real = realpath(own, NULL), *same = canonicalize_file_name(own);
	CHECK(real && strncmp(real, "/sys/devices/pci", 16) == 0 && same && strcmp(real, same) == 0);
	CHECK(realpath(own, text) == text && strcmp(text, real) == 0);
	free(same);
	/* Mooncake parses the last component as a PCI address. */
	unsigned domain, bus, device, function;
	char up[400];
	snprintf(up, sizeof(up), "%s/../..", own);
	same = realpath(up, NULL);
	CHECK(same && sscanf(strrchr(same, '/'), "/%x:%x:%x.%x", &domain, &bus, &device, &function) == 4);
	snprintf(up, sizeof(up), "%s/device", own);
	real = realloc(real, PATH_MAX);
	CHECK(realpath(up, real) == real && same && strcmp(real, same) == 0);
	free(real);
	free(same);

	FAILS(getxattr(state, "user.x", text, 1), ENOTSUP);
	FAILS(llistxattr(own, text, 1), ENOTSUP);
	for (int i = 0; i < 3; i++) {
		const char *missing[] = {"/nothing", "/ports/2", "/ports/1/gids/16"};
		snprintf(text, sizeof(text), "%s%s", own, missing[i]);
		FAILS(stat(text, &st), ENOENT);
		FAILS(open(text, O_RDONLY), ENOENT);
		FAILS(access(text, F_OK), ENOENT);
		NONE(fopen(text, "r"), ENOENT);
		NONE(opendir(text), ENOENT);
		NONE(realpath(text, NULL), ENOENT);
	}
	snprintf(text, sizeof(text), "%s/more", state);
	FAILS(stat(text, &st), ENOTDIR);
	FAILS(stat(CLASS "/nothing", &st), ENOENT);
}

static void by_descriptor(void)
{
	struct stat st, other;
	struct statx x;
	char text[64];

	int fd = open(state, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && read(fd, text, sizeof(text)) == 10 && memcmp(text, "4: ACTIVE\n", 10) == 0);
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC && write(fd, "x", 1) < 0 && ftruncate(fd, 0) < 0);
        CHECK(stat(state, &st) == 0 && fstat(fd, &other) == 0 && st.st_ino == other.st_ino &&
              st.st_mode == other.st_mode);
        CHECK(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &x) == 0 && x.stx_ino == st.st_ino);
	close(fd);

	FILE *f = fopen(state, "re");
	CHECK(f && fgets(text, sizeof(text), f) && strcmp(text, "4: ACTIVE\n") == 0);
	int number = f ? fileno(f) : -1;
	if (f)
		fclose(f);
	/* The descriptor's number is reused for another file without a close that the library sees. */
	fd = open("/proc/self/exe", O_RDONLY);
	CHECK(fd == number && fstat(fd, &other) == 0 && other.st_dev != st.st_dev && other.st_size > 0);
	close(fd);
	NONE(fopen(state, "w"), EACCES);
	NONE(fopen(state, "r+"), EACCES);
	NONE(fopen(own, "w"), EISDIR);

	FAILS(open(state, O_RDWR), EACCES);
	FAILS(open(state, O_WRONLY | O_CREAT | O_EXCL, 0600), EEXIST);
	FAILS(open(state, O_RDONLY | O_DIRECTORY), ENOTDIR);
	FAILS(open(own, O_RDWR), EISDIR);
	FAILS(open(own, O_RDONLY | O_NOFOLLOW), ELOOP);

	int folder = open(own, O_RDONLY | O_DIRECTORY);
	CHECK(folder >= 0 && fstat(folder, &st) == 0 && S_ISDIR(st.st_mode));
	CHECK(fstatat(folder, "", &other, AT_EMPTY_PATH) == 0 && other.st_ino == st.st_ino);
        int copies[] = { dup(folder), fcntl(folder, F_DUPFD_CLOEXEC, 100), dup2(folder, 90),
                         dup3(folder, 91, O_CLOEXEC), folder };
        for (unsigned i = 0; i < sizeof(copies) / sizeof(*copies); i++) {
		CHECK(copies[i] >= 0 && faccessat(copies[i], "ports/1/state", R_OK, 0) == 0);
                CHECK((fd = openat(copies[i], "ports/1/state", O_RDONLY)) >= 0 &&
                      read(fd, text, sizeof(text)) == 10);
                close(fd);
		CHECK(readlinkat(copies[i], "device", text, sizeof(text)) > 0);
		CHECK(fstatat(copies[i], "device", &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode));
		FAILS(openat(copies[i], "nothing", O_RDONLY), ENOENT);
		close(copies[i]);
	}
	FAILS(openat(folder, "ports/1/state", O_RDONLY), EBADF);

	/* From a folder of the kernel's, as hwloc does. */
	folder = open("/", O_RDONLY | O_DIRECTORY);
	CHECK((fd = openat(folder, state + 1, O_RDONLY)) >= 0 && read(fd, text, sizeof(text)) == 10);
	close(fd);
	close(folder);
	CHECK(chdir("/sys/class") == 0 && (fd = open(state + sizeof("/sys/class"), O_RDONLY)) >= 0);
	close(fd);
	CHECK(chdir("/") == 0);
}

static int not_hidden(const struct dirent *e)
{
	return e->d_name[0] != '.';
}

static int visits, files, links, folders, last_level;

static int visit(const char *path, const struct stat *st, int what, struct FTW *at)
{
	visits++;
	files += what == FTW_F && S_ISREG(st->st_mode);
	links += what == FTW_SL && S_ISLNK(st->st_mode);
	folders += (what == FTW_D || what == FTW_DP) && S_ISDIR(st->st_mode);
	last_level = at->level;
	return strchr(path + at->base, '/') ? 7 : 0;
}

static int visit_old(const char *path, const struct stat *st, int what)
{
	visits++;
	files += what == FTW_F && S_ISREG(st->st_mode);
	return path[0] == '/' ? 0 : 7;
}

static void by_folder(void)
{
	struct dirent *e, **list;
	struct stat st;
	char path[800];
	int n = 0, dots = 0;

	DIR *d = opendir(gids);
	CHECK(d && dirfd(d) >= 0 && telldir(d) == 0);
	while (d && (e = readdir(d))) {
		if (e->d_name[0] == '.') {
			CHECK(e->d_type == DT_DIR);
			dots++;
			continue;
		}
		snprintf(path, sizeof(path), "%s/%s", gids, e->d_name);
		CHECK(e->d_type == DT_REG && stat(path, &st) == 0 && st.st_ino == e->d_ino);
		CHECK(fstatat(dirfd(d), e->d_name, &st, 0) == 0 && st.st_ino == e->d_ino);
		n++;
	}
	CHECK(n == GIDS && dots == 2);
	rewinddir(d);
	CHECK(readdir64(d) && readdir64(d) && readdir64(d));
	long at = telldir(d);
	CHECK((e = readdir(d)) && strcmp(e->d_name, "1") == 0);
	seekdir(d, at);
	CHECK((e = readdir(d)) && strcmp(e->d_name, "1") == 0);
	int fd = dirfd(d);
	CHECK(closedir(d) == 0 && fcntl(fd, F_GETFD) < 0);
	NONE(opendir(state), ENOTDIR);
	fd = open(gids, O_RDONLY | O_DIRECTORY);
	CHECK((d = fdopendir(fd)) && readdir(d) && closedir(d) == 0);

	CHECK(scandir(gids, &list, not_hidden, alphasort) == GIDS);
	for (int i = 0; i < GIDS; i++)
		CHECK(i == 0 || strcmp(list[i - 1]->d_name, list[i]->d_name) < 0);
	for (int i = 0; i < GIDS; i++)
		free(list[i]);
	free(list);
	FAILS(scandir(state, &list, NULL, NULL), ENOTDIR);

	glob_t found = {0};
	snprintf(path, sizeof(path), CLASS "/*/ports/1/gids/[0-9]");
        CHECK(glob(path, 0, NULL, &found) == 0 && found.gl_pathc % 10 == 0 &&
              strncmp(found.gl_pathv[0], CLASS "/", sizeof(CLASS)) == 0);
        snprintf(path, sizeof(path), "%s/nothing*", own);
	CHECK(glob(path, GLOB_APPEND, NULL, &found) == GLOB_NOMATCH);
	globfree(&found);

        CHECK(nftw(gids, visit, 8, FTW_PHYS) == 0 && visits == GIDS + 1 && files == GIDS &&
              folders == 1 && last_level == 1);
        visits = files = folders = 0;
        CHECK(nftw(gids, visit, 8, FTW_PHYS | FTW_DEPTH) == 0 && visits == GIDS + 1 &&
              files == GIDS && folders == 1 && last_level == 0);
        visits = files = folders = links = 0;
	snprintf(path, sizeof(path), "%s/", own);
	CHECK(nftw(path, visit, 8, FTW_PHYS) == 0 && files > 60 && folders > 8 && links == 2);
	/* Links lead back to the start. */
	visits = files = folders = links = 0;
	CHECK(nftw(path, visit, 8, 0) == 0 && files > 60 && folders > 8 && links == 0);
	visits = files = 0;
	CHECK(ftw(gids, visit_old, 8) == 0 && visits == GIDS + 1 && files == GIDS);
	CHECK(nftw("/sys/class/net", visit, 8, FTW_PHYS) == 0);
}

static void devices(const char *uverbs)
{
	struct stat st;
	char path[300];

	CHECK(stat("/dev/infiniband", &st) == 0 && S_ISDIR(st.st_mode));
	CHECK(stat("/dev/infiniband/rdma_cm", &st) == 0 && S_ISCHR(st.st_mode));
	snprintf(path, sizeof(path), "/dev/infiniband/%s", uverbs);
        CHECK(stat(path, &st) == 0 && S_ISCHR(st.st_mode) && major(st.st_rdev) == 231 &&
              access(path, R_OK | W_OK) == 0);
        snprintf(path, sizeof(path), "/sys/class/infiniband_verbs/%s/ibdev", uverbs);
	CHECK(access(path, R_OK) == 0);
}

/* Opening more folders than the table holds is an error; closing one makes room. */
static void bounds(void)
{
	static DIR *all[2000];
	int n = 0;

	while (n < 2000 && (all[n] = opendir(gids)))
		n++;
	CHECK(n > 50 && n < 2000 && errno == EMFILE);
	CHECK(readdir(all[n - 1]) && closedir(all[0]) == 0 && (all[0] = opendir(gids)));
	for (int i = 0; i < n; i++)
		CHECK(closedir(all[i]) == 0);

	struct stat st;
	char *longest = malloc(70000);
	memset(longest, '/', 70000);
	strcpy(longest, CLASS);
	for (size_t at = strlen(longest); at < 65000; at += 4)
		strcpy(longest + at, "/../");
	FAILS(stat(longest, &st), ENAMETOOLONG);
	free(longest);
	CHECK(stat(CLASS "/../infiniband/./../infiniband///", &st) == 0);
	FAILS(stat(CLASS "/\xff\xfe", &st), ENOENT);
	const char *volatile none = NULL;
	FAILS(stat((const char *)none, &st), EFAULT);
	FAILS(stat("", &st), ENOENT);
	FAILS(openat(-1, "infiniband", O_RDONLY), EBADF);
	FAILS(openat(99999999, "infiniband", O_RDONLY), EBADF);
}

static void *many_times(void *none)
{
	for (int i = 0; i < 100; i++) {
		DIR *d = opendir(gids);
		int n = 0;

		while (d && readdir(d))
			n++;
		CHECK(n == GIDS + 2);
		if (d)
			closedir(d);
		int fd = open(state, O_RDONLY);
		char text[16];
		CHECK(fd >= 0 && read(fd, text, sizeof(text)) == 10);
		close(fd);
	}
	return none;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	snprintf(own, sizeof(own), CLASS "/%s", argv[1]);
	snprintf(gids, sizeof(gids), "%s/ports/1/gids", own);
	snprintf(state, sizeof(state), "%s/ports/1/state", own);
	by_path();
	by_descriptor();
	by_folder();
	devices(argv[2]);
	bounds();
	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, many_times, NULL);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	printf("ok\n");
	return 0;
}
