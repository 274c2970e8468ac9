#include "serve/text/constraint.h"

#include "serve/text/text_handle.h"

namespace tandem::text {

namespace {

std::string_view kind_name(GrammarKind kind) {
  switch (kind) {
    case GrammarKind::kJsonSchema: return "json_schema";
    case GrammarKind::kRegex: return "regex";
    case GrammarKind::kLark: return "lark";
    case GrammarKind::kChoice: return "choice";
  }
  return "";
}

Status done_if(bool ok, const OutText& error) {
  if (!ok) return error.error(ErrorCode::kInvalidArgument);
  return Done{};
}

}  // namespace

void Constraint::Free::operator()(tt_constraint* handle) const { tt_constraint_free(handle); }

Result<Constraint> Constraint::clone() const {
  OutText error;
  tt_constraint* copy = tt_constraint_clone(handle_.get(), error.out());
  if (!copy) return error.error(ErrorCode::kInternal);
  return Constraint(copy);
}

Status Constraint::mask(uint32_t* mask, size_t words) {
  OutText error;
  return done_if(tt_constraint_mask(handle_.get(), mask, words, error.out()), error);
}

Status Constraint::commit(const std::vector<TokenId>& ids) {
  OutText error;
  return done_if(tt_constraint_commit(handle_.get(), raw_ids(ids), ids.size(), error.out()), error);
}

Result<size_t> Constraint::validate(const std::vector<TokenId>& ids) {
  OutText error;
  const int64_t n = tt_constraint_validate(handle_.get(), raw_ids(ids), ids.size(), error.out());
  if (n < 0) return error.error(ErrorCode::kInvalidArgument);
  return static_cast<size_t>(n);
}

Status Constraint::rollback(size_t n) {
  OutText error;
  return done_if(tt_constraint_rollback(handle_.get(), n, error.out()), error);
}

Result<std::vector<TokenId>> Constraint::forced() {
  OutIds ids;
  OutText error;
  if (!tt_constraint_forced(handle_.get(), ids.out(), error.out())) return error.error(ErrorCode::kInvalidArgument);
  return ids.take();
}

bool Constraint::is_accepting() { return tt_constraint_is_accepting(handle_.get()); }

bool Constraint::is_stopped() const { return tt_constraint_is_stopped(handle_.get()); }

void ConstraintEngine::Free::operator()(tt_engine* handle) const { tt_engine_free(handle); }

Result<ConstraintEngine> ConstraintEngine::create(const Tokenizer& tokenizer, size_t logits_size,
                                                  const std::vector<TokenId>& stops) {
  OutText error;
  tt_engine* handle = tt_engine_new(tokenizer.handle(), logits_size, raw_ids(stops), stops.size(), error.out());
  if (!handle) return error.error(ErrorCode::kInvalidArgument);
  return ConstraintEngine(handle);
}

size_t ConstraintEngine::mask_words() const { return tt_mask_words(handle_.get()); }

Result<Constraint> ConstraintEngine::compile(GrammarKind kind, std::string_view source) const {
  OutText error;
  tt_constraint* handle =
      tt_constraint_compile(handle_.get(), raw_str(kind_name(kind)), raw_str(source), error.out());
  if (!handle) return error.error(ErrorCode::kInvalidArgument);
  return Constraint(handle);
}

}  // namespace tandem::text
