// SPDX-License-Identifier: MIT
#include "interrupt.hpp"

#include <atomic>
#include <csignal>
#include <iostream>
#include <mutex>
#include <thread>
#include <utility>

#include <quena/core/error.hpp>

#ifdef _WIN32
extern "C" __declspec(dllimport) int __stdcall SetConsoleCtrlHandler(int(__stdcall* handler)(unsigned long), int add);
#else
#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#endif

namespace cli {

#ifdef _WIN32  // the system calls the handler on a thread of its own

namespace {

std::mutex guard;
std::stop_source* current = nullptr;
int presses = 0;

int __stdcall on_ctrl_c(unsigned long event) {
  if (event != 0) return 0;  // closing the window is another matter
  const std::lock_guard lock(guard);
  if (current != nullptr) current->request_stop();
  return ++presses <= 2;
}

}  // namespace

struct interrupts::scope::state {
  std::stop_source source;
};

interrupts::interrupts() { SetConsoleCtrlHandler(&on_ctrl_c, 1); }
interrupts::~interrupts() { SetConsoleCtrlHandler(&on_ctrl_c, 0); }

interrupts::scope::scope(interrupts&) : state_(std::make_unique<state>()) {
  const std::lock_guard lock(guard);
  current = &state_->source;
  presses = 0;
}
interrupts::scope::~scope() {
  const std::lock_guard lock(guard);
  current = nullptr;
}

std::optional<std::string> interrupts::read_line() {
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return line;
}

#else  // a handler may do next to nothing, so it writes into a pipe, and whoever waits there acts

namespace {

std::atomic<int> pipe_end = -1;
std::atomic<int> presses = 0;  // that nobody has taken from the pipe
static_assert(std::atomic<int>::is_always_lock_free);
int pipe_start = -1;

extern "C" void on_ctrl_c(int) {
  const int saved = errno;
  if (++presses > 2) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  static_cast<void>(!::write(pipe_end, "c", 1));
  errno = saved;
}

void take_presses() {
  char bytes[16];
  while (::read(pipe_start, bytes, sizeof bytes) > 0) {}
  presses = 0;
}

}  // namespace

struct interrupts::scope::state {
  std::stop_source source;
  std::jthread watcher;
};

interrupts::interrupts() {
  int ends[2];
  if (::pipe(ends) != 0) quena::fail(quena::errc::io, "cli", "cannot make a pipe");
  for (const int end : ends) {
    ::fcntl(end, F_SETFD, FD_CLOEXEC);
    ::fcntl(end, F_SETFL, O_NONBLOCK);
  }
  pipe_start = ends[0];
  pipe_end = ends[1];
  struct sigaction act {};
  act.sa_handler = on_ctrl_c;
  act.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &act, nullptr);
}

interrupts::~interrupts() {
  std::signal(SIGINT, SIG_DFL);
  ::close(pipe_end.exchange(-1));
  ::close(pipe_start);
}

interrupts::scope::scope(interrupts&) : state_(std::make_unique<state>()) {
  take_presses();
  state_->watcher = std::jthread([source = state_->source]() mutable {
    for (;;) {
      pollfd wait{pipe_start, POLLIN, 0};
      char what = 0;
      if (::poll(&wait, 1, -1) < 0 && errno != EINTR) return;
      if (::read(pipe_start, &what, 1) != 1) continue;
      if (what == 'q') return;
      source.request_stop();
    }
  });
}

interrupts::scope::~scope() {
  static_cast<void>(!::write(pipe_end, "q", 1));
  state_->watcher.join();
  take_presses();
}

std::optional<std::string> interrupts::read_line() {
  for (;;) {
    if (const std::size_t end = buffer_.find('\n'); end != buffer_.npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    pollfd wait[2] = {{0, POLLIN, 0}, {pipe_start, POLLIN, 0}};
    if (::poll(wait, 2, -1) < 0) {
      if (errno == EINTR) continue;
      return std::nullopt;
    }
    if (wait[1].revents != 0) {
      take_presses();
      return std::nullopt;
    }
    char bytes[4096];
    const ssize_t n = ::read(0, bytes, sizeof bytes);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n > 0) {
      buffer_.append(bytes, static_cast<std::size_t>(n));
      continue;
    }
    if (buffer_.empty()) return std::nullopt;
    return std::exchange(buffer_, {});  // a last line without an end
  }
}

#endif

std::stop_token interrupts::scope::token() const { return state_->source.get_token(); }

}  // namespace cli
