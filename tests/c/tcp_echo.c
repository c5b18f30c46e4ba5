/* A plain TCP program: tcp_echo OWN [SERVER]. The server echoes, the client compares. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "patience.h"

#define PORT 7777
#define BYTES 2000000

#define CHECK(x) ((x) ? (void)0 : (perror(#x), exit(1)))

static struct sockaddr_in address(const char *ip, int port) {
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
	CHECK(inet_pton(AF_INET, ip, &a.sin_addr) == 1);
	return a;
}

static unsigned char byte_of(unsigned i) {
	return i * 2654435761u >> 13;
}

static void serve(const char *own) {
	static char buf[10000];
	struct sockaddr_in a = address(own, PORT);
	int one = 1, l = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(l >= 0 && setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
	CHECK(bind(l, (struct sockaddr *)&a, sizeof a) == 0 && listen(l, 4) == 0);
	int s = accept(l, NULL, NULL);
	CHECK(s >= 0);
	ssize_t n;
	while ((n = recv(s, buf, sizeof buf, 0)) > 0)
		for (ssize_t done = 0, m; done < n; done += m)
			CHECK((m = send(s, buf + done, n - done, 0)) > 0);
	CHECK(n == 0);
	close(s);
	close(l);
}

static void ask(const char *own, const char *server) {
	struct sockaddr_in a = address(own, 0), to = address(server, PORT);
	int s = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(s >= 0 && bind(s, (struct sockaddr *)&a, sizeof a) == 0);
	CHECK(connect(s, (struct sockaddr *)&to, sizeof to) == 0);
	unsigned sent = 0, got = 0;
	static unsigned char buf[7000];
	while (got < BYTES) {
		/* Limits the bytes under way, or both sides would wait for room. */
		int more = sent < BYTES && sent - got < 30000;
		struct pollfd p = {.fd = s, .events = POLLIN | (more ? POLLOUT : 0)};
		CHECK(poll(&p, 1, patience_ms(60)) == 1);
		if (more && p.revents & POLLOUT) {
			size_t n = sizeof buf < BYTES - sent ? sizeof buf : BYTES - sent;
			for (size_t i = 0; i < n; i++)
				buf[i] = byte_of(sent + i);
			ssize_t m = send(s, buf, n, 0);
			CHECK(m > 0);
			sent += m;
		}
		if (p.revents & POLLIN) {
			ssize_t n = recv(s, buf, sizeof buf, 0);
			CHECK(n > 0);
			for (ssize_t i = 0; i < n; i++)
				CHECK(buf[i] == byte_of(got + i));
			got += n;
		}
	}
	CHECK(shutdown(s, SHUT_RDWR) == 0);
	close(s);
	puts("ok");
}

int main(int argc, char **argv) {
	CHECK(argc == 2 || argc == 3);
	if (argc == 2)
		serve(argv[1]);
	else
		ask(argv[1], argv[2]);
	return 0;
}
