// Counts what the gloo backend starts, by the RecordFunction that each of its operations makes: a truth that shares
// nothing with the tap. One counter per name; every thread of the process is seen.
#include <ATen/record_function.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace {
std::mutex lock;
auto& counts = *new std::map<std::string, long>();
}  // namespace

extern "C" __attribute__((visibility("default"))) void count_start() {
  auto started = [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
    const char* name = function.name();
    if (strncmp(name, "gloo:", 5) == 0) {
      std::lock_guard<std::mutex> hold(lock);
      counts[name + 5]++;
    }
    return nullptr;
  };
  auto scopes = std::unordered_set<at::RecordScope>{at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE};
  at::addGlobalCallback(at::RecordFunctionCallback(started).scopes(scopes));
}

// "name count" lines.
extern "C" __attribute__((visibility("default"))) void count_read(char* out, size_t size) {
  std::lock_guard<std::mutex> hold(lock);
  std::string text;
  for (const auto& [name, count] : counts) text += name + " " + std::to_string(count) + "\n";
  snprintf(out, size, "%s", text.c_str());
}
