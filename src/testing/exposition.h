#pragma once
// What is wrong with a metrics page, by the rules of the Prometheus text format 0.0.4 and the conventions that readers
// of it rely on: one HELP and TYPE a family, before its samples, which stand together; no sample twice; names, labels
// and escapes as they must be; numbers, and no NaN among them; counters that end in _total and do not fall below 0;
// buckets that rise up to +Inf, which is the count.

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::testing {

// Empty: nothing. Each fault names its line.
std::vector<std::string> faults_in_exposition(std::string_view text);

// Sample names with their labels, as they stand there, and their values. What cannot be read is left out.
std::map<std::string, double> samples_in_exposition(std::string_view text);

}  // namespace tandem::testing
