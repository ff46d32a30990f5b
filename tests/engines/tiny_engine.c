/* A server in one static program, for images with nothing else in them: what a container needs of an engine, and its
 * nasty modes. Every GET is answered 200. cc -static tiny_engine.c; flags: --port N, --exit CODE (at once),
 * --ignore-term, --fork (a child that lives on), --say WORDS (at the start), --env NAME (say its value),
 * --read FILE (say its first line), --write FILE (say whether that may be). */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void leave(int number) {
  (void)number;
  static const char words[] = "ends by TERM\n";
  (void)!write(1, words, sizeof words - 1);
  _exit(0);
}

int main(int argc, char **argv) {
  int port = 0, deaf = 0;
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--port")) port = atoi(argv[++i]);
    else if (!strcmp(argv[i], "--say")) puts(argv[++i]);
    else if (!strcmp(argv[i], "--env")) { const char *v = getenv(argv[++i]); printf("%s=%s\n", argv[i], v ? v : "(unset)"); }
    else if (!strcmp(argv[i], "--read")) { char line[256] = "(none)\n"; FILE *f = fopen(argv[++i], "r"); if (f) (void)!fgets(line, sizeof line, f); printf("read %s", line); }
    else if (!strcmp(argv[i], "--write")) { FILE *f = fopen(argv[++i], "w"); puts(f ? "written" : "may not write"); if (f) fclose(f); }
    else if (!strcmp(argv[i], "--exit")) return atoi(argv[++i]);
    else if (!strcmp(argv[i], "--ignore-term")) deaf = 1;
    else if (!strcmp(argv[i], "--fork") && fork() == 0) { setsid(); for (;;) pause(); }
  }
  signal(SIGTERM, deaf ? SIG_IGN : leave);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGCHLD, SIG_IGN);
  int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 64)) { perror("listen"); return 1; }
  printf("listening on %d\n", port);
  for (;;) {
    char request[4096];
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 15\r\nConnection: close\r\n\r\n{\"status\":\"ok\"}";
    int peer = accept(listener, NULL, NULL);
    if (peer < 0) continue;
    if (read(peer, request, sizeof request) > 0) (void)!write(peer, answer, sizeof answer - 1);
    close(peer);
  }
}
