/* Preloaded into a program, it writes down each look-up of a name and each address outside of loopback that the
 * program, or one that it starts, turns to: one line a time into the file that NETWORK_WITNESS names. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void witness(const char *format, ...) {
    const char *path = getenv("NETWORK_WITNESS");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    if (file < 0)
        return;
    int kept = errno;
    va_list values;
    va_start(values, format);
    dprintf(file, "%s %d: ", program_invocation_short_name, (int)getpid());
    vdprintf(file, format, values);
    dprintf(file, "\n");
    va_end(values);
    close(file);
    errno = kept;
}

static int is_local_name(const char *name) {
    unsigned char address[16];
    return !name || !*name || !strcmp(name, "localhost") || inet_pton(AF_INET, name, address) == 1 ||
           inet_pton(AF_INET6, name, address) == 1;
}

static void see_name(const char *call, const char *name) {
    if (!is_local_name(name))
        witness("%s(%s)", call, name);
}

static void see_address(const char *call, const struct sockaddr *address) {
    char text[INET6_ADDRSTRLEN] = "";
    if (!address)
        return;
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)address;
        unsigned long where = ntohl(four->sin_addr.s_addr);
        if (where >> 24 != 127 && where != 0) /* to 0.0.0.0 means to this machine */
            witness("%s(%s)", call, inet_ntop(AF_INET, &four->sin_addr, text, sizeof text));
    } else if (address->sa_family == AF_INET6) {
        const struct in6_addr *where = &((const struct sockaddr_in6 *)address)->sin6_addr;
        int mapped = IN6_IS_ADDR_V4MAPPED(where) && where->s6_addr[12] == 127;
        if (!mapped && !IN6_IS_ADDR_LOOPBACK(where) && !IN6_IS_ADDR_UNSPECIFIED(where))
            witness("%s(%s)", call, inet_ntop(AF_INET6, where, text, sizeof text));
    }
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    see_name("getaddrinfo", node);
    return REAL(getaddrinfo)(node, service, hints, found);
}

struct hostent *gethostbyname(const char *name) {
    see_name("gethostbyname", name);
    return REAL(gethostbyname)(name);
}

int gethostbyname_r(const char *name, struct hostent *result, char *buffer, size_t size, struct hostent **found,
                    int *error) {
    see_name("gethostbyname_r", name);
    return REAL(gethostbyname_r)(name, result, buffer, size, found, error);
}

int gethostbyaddr_r(const void *address, socklen_t length, int family, struct hostent *result, char *buffer,
                    size_t size, struct hostent **found, int *error) {
    witness("gethostbyaddr_r");
    return REAL(gethostbyaddr_r)(address, length, family, result, buffer, size, found, error);
}

int getnameinfo(const struct sockaddr *address, socklen_t length, char *host, socklen_t host_size, char *service,
                socklen_t service_size, int flags) {
    if (host && !(flags & NI_NUMERICHOST))
        witness("getnameinfo");
    return REAL(getnameinfo)(address, length, host, host_size, service, service_size, flags);
}

int connect(int descriptor, const struct sockaddr *address, socklen_t length) {
    see_address("connect", address);
    return REAL(connect)(descriptor, address, length);
}

ssize_t sendto(int descriptor, const void *data, size_t size, int flags, const struct sockaddr *address,
               socklen_t length) {
    see_address("sendto", address);
    return REAL(sendto)(descriptor, data, size, flags, address, length);
}

ssize_t sendmsg(int descriptor, const struct msghdr *message, int flags) {
    see_address("sendmsg", message->msg_name);
    return REAL(sendmsg)(descriptor, message, flags);
}

int sendmmsg(int descriptor, struct mmsghdr *messages, unsigned int count, int flags) {
    for (unsigned int i = 0; i < count; i++)
        see_address("sendmmsg", messages[i].msg_hdr.msg_name);
    return REAL(sendmmsg)(descriptor, messages, count, flags);
}
