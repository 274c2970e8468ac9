#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "apps/conversation.h"
#include "apps/subcommands.h"

namespace tandem::apps {
namespace {

std::atomic<bool> interrupted{false};

void on_interrupt(int) { interrupted = true; }

// While it lives, Ctrl-C sets `interrupted`; before and after, it ends the process.
class CatchInterrupt {
 public:
  CatchInterrupt() {
    interrupted = false;
    struct sigaction action {};
    action.sa_handler = on_interrupt;
    sigaction(SIGINT, &action, &before_);
  }
  ~CatchInterrupt() { sigaction(SIGINT, &before_, nullptr); }

 private:
  struct sigaction before_ {};
};

std::string read_all_input() {
  std::string text;
  char buffer[4096];
  for (size_t count = 0; (count = std::fread(buffer, 1, sizeof buffer, stdin)) > 0;) text.append(buffer, count);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

// False at the end of the input.
bool read_line(std::string& line) {
  line.clear();
  int c = std::getchar();
  for (; c != EOF && c != '\n'; c = std::getchar()) line += static_cast<char>(c);
  return c != EOF || !line.empty();
}

void print_end(const AnswerEnd& end) {
  std::fputc('\n', stdout);
  std::fflush(stdout);
  if (isatty(STDERR_FILENO) == 0) return;
  const double tokens_per_s = end.decode_s > 0 ? (end.num_tokens - 1) / end.decode_s : 0;
  fmt::print(stderr, "[{} + {} tokens, first after {:.2f} s, then {:.1f} tokens/s{}]\n", end.num_prompt_tokens,
             end.num_tokens, end.first_token_s, tokens_per_s, end.is_cut ? ", cut" : "");
}

Result<int> chat(Conversation& conversation) {
  fmt::print(stderr, "Ctrl-C breaks an answer off, Ctrl-D ends.\n");
  std::string line;
  for (;;) {
    fmt::print(stderr, "> ");
    std::fflush(stderr);
    if (!read_line(line)) break;
    if (line.empty()) continue;
    const CatchInterrupt catching;
    const auto end = conversation.ask(line, interrupted);
    if (end) print_end(end.value());
    else fmt::print(stderr, "tandem: {}\n", end.error().message);
  }
  fmt::print(stderr, "\n");
  return kExitDone;
}

}  // namespace

Result<int> run_answer(const cli::Invocation& invocation) {
  const OptionValues& values = invocation.values;
  const std::string& name = invocation.positionals[0];
  const bool has_prompt = invocation.positionals.size() > 1;
  const bool is_terminal = isatty(STDIN_FILENO) != 0;
  std::string prompt = has_prompt ? invocation.positionals[1] : is_terminal ? "" : read_all_input();
  if (prompt.empty() && (has_prompt || !is_terminal)) {
    std::fprintf(stderr, "tandem: the prompt is empty\n");
    return kExitUsage;
  }
  if (prompt.empty() && values.is_on("raw")) {
    std::fprintf(stderr, "tandem: --raw continues a prompt, and there is none\n");
    return kExitUsage;
  }
  TRY_ASSIGN(const LoadedModel model, load_model(name, values));
  Conversation conversation(model, values, name);
  if (prompt.empty()) return chat(conversation);
  const CatchInterrupt catching;
  TRY_ASSIGN(const AnswerEnd end, values.is_on("raw") ? conversation.continue_text(prompt, interrupted)
                                                      : conversation.ask(prompt, interrupted));
  print_end(end);
  return kExitDone;
}

}  // namespace tandem::apps
