#include "comm/expiry.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "dmuon/core/text.h"

namespace dmuon {
namespace {

// First characters of notices that are no last words.
constexpr char expired = '\1';  // the rank will give up; who hears it answers
constexpr char alive = '\2';

}  // namespace

void check_same_call(const Group& group, const Operation& mine, const Greeting& theirs, int peer) {
  Operation call;
  if (!read_greeting(theirs, call))
    throw CommunicationError(text(mine.describe(), " of group \"", group.name(), "\" on ", group.who(group.rank()), ": ", group.who(peer),
                                  " sent something that is no greeting of this version of dmuon; start the same "
                                  "program on all ranks"));
  if (!same_call(mine, call))
    throw CommunicationError(text("ranks of group \"", group.name(), "\" entered different collectives: ", group.who(group.rank()),
                                  " is in ", mine.describe(), ", ", group.who(peer), " in ", call.describe(),
                                  "; every rank must enter the same collectives in the same order with matching arguments"));
}

void throw_if_another_gave_up(Group& group) {
  std::optional<Notice> notice = group.transport().poll_notice();
  if (!notice || notice->message.starts_with(alive)) return;
  // A rank that expired finds out who is alive before it speaks its last word, which names the culprit.
  if (notice->message.starts_with(expired)) {
    const int speaker = notice->rank;
    group.transport().send_notice(std::string(1, alive));
    notice->message.erase(0, 1);
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < std::chrono::seconds(2)) {
      std::optional<Notice> next = group.transport().poll_notice();
      if (next && next->rank == speaker && !next->message.starts_with(alive)) {
        notice = std::move(next);
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  throw CommunicationError(text(group.who(notice->rank), " gave up: ", notice->message));
}

// Who does not answer within the grace time is the likely cause.
void expire(Group& group, const Operation& operation, double deadline_seconds, const std::vector<std::string>& waiting) {
  const std::string what = text(operation.describe(), " of group \"", group.name(), "\" on ", group.who(group.rank()),
                                " did not finish within ", format_duration(deadline_seconds));
  const std::string missing = join(waiting, ", ");
  group.transport().send_notice(text(expired, what, "; it waits for ", missing));
  std::vector<bool> answered(static_cast<size_t>(group.size()));
  const auto start = std::chrono::steady_clock::now();
  const std::chrono::duration<double> grace(std::min(1.0, deadline_seconds / 4));
  while (std::chrono::steady_clock::now() - start < grace) {
    if (const auto notice = group.transport().poll_notice()) answered[static_cast<size_t>(notice->rank)] = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  std::vector<std::string> silent;
  for (int peer = 0; peer < group.size(); ++peer)
    if (peer != group.rank() && !answered[static_cast<size_t>(peer)]) silent.push_back(group.who(peer));
  throw CommunicationError(text(what, ": waiting for ", missing, ". No sign of life from ",
                                silent.empty() ? "nobody else" : join(silent, ", "),
                                ". Remedy: look there first (a stopped, crashed or much slower process, or the network between the "
                                "hosts); if they are only slow, raise the deadline in the configuration"));
}

}  // namespace dmuon
