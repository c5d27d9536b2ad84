// A node on rcl, whose thread passes serialised messages to a C function. It is compiled without message types, and loads the type
// support by a type's name. Python calls the C functions at the end of this file through ctypes.
//
// A C function that fails writes the reason to `error` and returns a number other than 0, or null.

#include <dlfcn.h>
#include <rcl/error_handling.h>
#include <rcl/graph.h>
#include <rcl/rcl.h>
#include <rcl_yaml_param_parser/parser.h>
#include <rmw/qos_string_conversions.h>
#include <rosidl_runtime_c/message_type_support_struct.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

// Takes a message. It is the same type as Topic::Sink in robocache/live/topic.hpp.
using Sink = void (*)(void* topic, const uint8_t* bytes, size_t size, int64_t arrival_ns, uint64_t publisher,
                      uint64_t sequence);

[[noreturn]] void fail(const std::string& what) {
  const std::string reason = rcl_error_is_set() ? rcl_get_error_string().str : "";
  rcl_reset_error();
  throw std::runtime_error(reason.empty() ? what : what + ": " + reason);
}

void check(rcl_ret_t returned, const std::string& what) {
  if (returned != RCL_RET_OK) fail(what);
}

// Ignores an error of cleaning up, about which nothing can be done.
void ignore(rcl_ret_t) {}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Loads the type support of a type such as "sensor_msgs/msg/JointState".
const rosidl_message_type_support_t* type_support(const std::string& type) {
  const size_t first = type.find('/');
  const size_t last = type.rfind('/');
  if (first == std::string::npos || type.substr(first, last - first) != "/msg") {
    throw std::runtime_error("type: expected '<package>/msg/<Type>', got '" + type + "'");
  }
  const std::string package = type.substr(0, first);
  const std::string file = "lib" + package + "__rosidl_typesupport_c.so";
  void* library = nullptr;
  std::stringstream prefixes(std::getenv("AMENT_PREFIX_PATH") == nullptr ? "" : std::getenv("AMENT_PREFIX_PATH"));
  for (std::string prefix; library == nullptr && std::getline(prefixes, prefix, ':');) {
    library = dlopen((prefix + "/lib/" + file).c_str(), RTLD_NOW);
  }
  if (library == nullptr) library = dlopen(file.c_str(), RTLD_NOW);
  if (library == nullptr)
    throw std::runtime_error("type " + type + ": " + dlerror() + "; source the workspace that has it");
  const std::string name =
      "rosidl_typesupport_c__get_message_type_support_handle__" + package + "__msg__" + type.substr(last + 1);
  using Get = const rosidl_message_type_support_t* (*)();
  const auto get = reinterpret_cast<Get>(dlsym(library, name.c_str()));
  if (get == nullptr) throw std::runtime_error("type " + type + ": " + file + " does not have it");
  return get();
}

// Returns the FNV-1a hash of a publisher's global id, by which the sink knows the publisher.
uint64_t hash_of(const rmw_gid_t& gid) {
  uint64_t hash = 14695981039346656037U;
  for (const uint8_t byte : gid.data) hash = (hash ^ byte) * 1099511628211U;
  return hash;
}

struct Subscription {
  std::string topic;
  rcl_subscription_t handle = rcl_get_zero_initialized_subscription();
  Sink sink = nullptr;
  void* context = nullptr;
};

class Node {
 public:
  Node(const char* name, const char* space, int argc, const char* const* argv) {
    const rcl_allocator_t allocator = rcl_get_default_allocator();
    rcl_init_options_t options = rcl_get_zero_initialized_init_options();
    check(rcl_init_options_init(&options, allocator), "rcl_init_options_init");
    const rcl_ret_t initialized = rcl_init(argc, argv, &options, &context_);
    ignore(rcl_init_options_fini(&options));
    check(initialized, "rcl_init");
    rcl_node_options_t node_options = rcl_node_get_default_options();
    node_options.enable_rosout = false;
    const auto returned = rcl_node_init(&node_, name, space, &context_, &node_options);
    ignore(rcl_node_options_fini(&node_options));
    if (returned == RCL_RET_OK &&
        rcl_guard_condition_init(&stop_, &context_, rcl_guard_condition_get_default_options()) == RCL_RET_OK)
      return;
    try {
      fail("the node");
    } catch (...) {
      end();
      throw;
    }
  }
  ~Node() { end(); }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  void subscribe(const char* topic, const char* type, const char* reliability, const char* durability, int64_t depth,
                 Sink sink, void* context) {
    auto subscription = std::make_unique<Subscription>();
    subscription->topic = topic;
    subscription->sink = sink;
    subscription->context = context;
    rcl_subscription_options_t options = rcl_subscription_get_default_options();
    options.qos.history = RMW_QOS_POLICY_HISTORY_KEEP_LAST;
    options.qos.depth = static_cast<size_t>(depth);
    options.qos.reliability = rmw_qos_reliability_policy_from_str(reliability);
    options.qos.durability = rmw_qos_durability_policy_from_str(durability);
    const auto returned = rcl_subscription_init(&subscription->handle, &node_, type_support(type), topic, &options);
    ignore(rcl_subscription_options_fini(&options));
    check(returned, std::string("topic ") + topic);
    subscriptions_.push_back(std::move(subscription));
  }

  void advertise(const char* topic, const char* type) {
    rcl_publisher_options_t options = rcl_publisher_get_default_options();
    check(rcl_publisher_init(&publisher_, &node_, type_support(type), topic, &options), std::string("topic ") + topic);
  }

  void publish(const uint8_t* bytes, size_t size) {
    rcl_serialized_message_t message = rmw_get_zero_initialized_serialized_message();
    message.buffer = const_cast<uint8_t*>(bytes);
    message.buffer_length = message.buffer_capacity = size;
    message.allocator = rcl_get_default_allocator();
    check(rcl_publish_serialized_message(&publisher_, &message, nullptr), "publish");
  }

  void start() {
    const rcl_allocator_t allocator = rcl_get_default_allocator();
    check(rcl_wait_set_init(&wait_set_, subscriptions_.size(), 1, 0, 0, 0, 0, &context_, allocator),
          "rcl_wait_set_init");
    check(rmw_serialized_message_init(&message_, 0, &allocator), "rmw_serialized_message_init");
    thread_ = std::thread([this] { run(); });
  }

  // Counts the publishers of a subscription's topic, and those of them whose QoS and type match.
  void publishers(size_t subscription, int64_t counts[2]) const {
    const rcl_subscription_t& handle = subscriptions_.at(subscription)->handle;
    size_t all = 0;
    size_t matched = 0;
    check(rcl_count_publishers(&node_, rcl_subscription_get_topic_name(&handle), &all), "rcl_count_publishers");
    check(rcl_subscription_get_publisher_count(&handle, &matched), "rcl_subscription_get_publisher_count");
    counts[0] = static_cast<int64_t>(all);
    counts[1] = static_cast<int64_t>(matched);
  }

  const char* name() const { return rcl_node_get_fully_qualified_name(&node_); }
  const rcl_arguments_t& arguments() const { return context_.global_arguments; }
  // Returns why the thread has ended by an error; "" if it has not.
  std::string broken() const { return is_broken_ ? broken_ : ""; }

 private:
  void run() {
    pthread_setname_np(pthread_self(), "robocache_ros2");
    try {
      while (!is_stopped_) {
        check(rcl_wait_set_clear(&wait_set_), "rcl_wait_set_clear");
        for (const auto& subscription : subscriptions_) {
          check(rcl_wait_set_add_subscription(&wait_set_, &subscription->handle, nullptr),
                "rcl_wait_set_add_subscription");
        }
        check(rcl_wait_set_add_guard_condition(&wait_set_, &stop_, nullptr), "rcl_wait_set_add_guard_condition");
        const rcl_ret_t waited = rcl_wait(&wait_set_, -1);
        if (waited == RCL_RET_TIMEOUT) continue;
        check(waited, "rcl_wait");
        for (size_t i = 0; i < subscriptions_.size() && !is_stopped_; ++i) {
          if (wait_set_.subscriptions[i] != nullptr) take_all(*subscriptions_[i]);
        }
      }
    } catch (const std::exception& error) {
      broken_ = error.what();
      is_broken_ = true;
    }
  }

  void take_all(const Subscription& subscription) {
    while (!is_stopped_) {
      rmw_message_info_t info = rmw_get_zero_initialized_message_info();
      const rcl_ret_t taken = rcl_take_serialized_message(&subscription.handle, &message_, &info, nullptr);
      if (taken == RCL_RET_SUBSCRIPTION_TAKE_FAILED) return;
      check(taken, "topic " + subscription.topic);
      // RMW_MESSAGE_INFO_SEQUENCE_NUMBER_UNSUPPORTED is the largest uint64, by which the sink knows that there is no number.
      subscription.sink(subscription.context, message_.buffer, message_.buffer_length, now_ns(),
                        hash_of(info.publisher_gid), info.publication_sequence_number);
    }
  }

  void end() {
    is_stopped_ = true;
    if (thread_.joinable()) {
      ignore(rcl_trigger_guard_condition(&stop_));
      thread_.join();
    }
    ignore(rcl_wait_set_fini(&wait_set_));
    for (const auto& subscription : subscriptions_) {
      ignore(rcl_subscription_fini(&subscription->handle, &node_));
    }
    if (publisher_.impl != nullptr) ignore(rcl_publisher_fini(&publisher_, &node_));
    if (message_.buffer != nullptr) ignore(rmw_serialized_message_fini(&message_));
    if (stop_.impl != nullptr) ignore(rcl_guard_condition_fini(&stop_));
    if (node_.impl != nullptr) ignore(rcl_node_fini(&node_));
    if (rcl_context_is_valid(&context_)) ignore(rcl_shutdown(&context_));
    if (context_.impl != nullptr) ignore(rcl_context_fini(&context_));
    rcl_reset_error();
  }

  rcl_context_t context_ = rcl_get_zero_initialized_context();
  rcl_node_t node_ = rcl_get_zero_initialized_node();
  rcl_guard_condition_t stop_ = rcl_get_zero_initialized_guard_condition();
  rcl_wait_set_t wait_set_ = rcl_get_zero_initialized_wait_set();
  rcl_publisher_t publisher_ = rcl_get_zero_initialized_publisher();
  rcl_serialized_message_t message_ = rmw_get_zero_initialized_serialized_message();
  std::vector<std::unique_ptr<Subscription>> subscriptions_;
  std::thread thread_;
  std::atomic<bool> is_stopped_{false};
  std::string broken_;
  std::atomic<bool> is_broken_{false};  // set when broken_ has been written
};

// ---- parameters ----

// Takes a parameter: its name, its kind ('b', 'i', 'd' or 's') and its value as text. For an array it is called once for each element,
// with the kind 'B', 'I', 'D' or 'S'.
using TakeValue = void (*)(const char* name, char kind, const char* text);

// Whether a section of a file of parameters applies to a node: its name is the node's, "/**", or "/*" if the node is in the root
// namespace.
bool applies_to(std::string section, const std::string& node) {
  if (section.rfind('/', 0) != 0) section = "/" + section;
  return section == node || section == "/**" || (section == "/*" && node.rfind('/') == 0);
}

template <class Array, class Body>
void for_each_index(const Array* array, const Body& body) {
  for (size_t i = 0; array != nullptr && i < array->size; ++i) body(i);
}

void pass_value(const char* name, const rcl_variant_t& value, TakeValue take) {
  const auto boolean = [](bool flag) { return flag ? "true" : "false"; };
  const auto real = [](double number) {
    char text[32];
    snprintf(text, sizeof text, "%.17g", number);
    return std::string(text);
  };
  if (value.bool_value != nullptr) take(name, 'b', boolean(*value.bool_value));
  if (value.integer_value != nullptr) take(name, 'i', std::to_string(*value.integer_value).c_str());
  if (value.double_value != nullptr) take(name, 'd', real(*value.double_value).c_str());
  if (value.string_value != nullptr) take(name, 's', value.string_value);
  const auto* booleans = value.bool_array_value;
  for_each_index(booleans, [&](size_t i) { take(name, 'B', boolean(booleans->values[i])); });
  const auto* integers = value.integer_array_value;
  for_each_index(integers, [&](size_t i) { take(name, 'I', std::to_string(integers->values[i]).c_str()); });
  const auto* doubles = value.double_array_value;
  for_each_index(doubles, [&](size_t i) { take(name, 'D', real(doubles->values[i]).c_str()); });
  const auto* strings = value.string_array_value;
  for_each_index(strings, [&](size_t i) { take(name, 'S', strings->data[i]); });
}

void pass_parameters(const Node& node, TakeValue take) {
  rcl_params_t* parameters = nullptr;
  check(rcl_arguments_get_param_overrides(&node.arguments(), &parameters), "parameters");
  if (parameters == nullptr) return;
  for (size_t i = 0; i < parameters->num_nodes; ++i) {
    if (!applies_to(parameters->node_names[i], node.name())) continue;
    const rcl_node_params_t& section = parameters->params[i];
    for (size_t j = 0; j < section.num_params; ++j) {
      pass_value(section.parameter_names[j], section.parameter_values[j], take);
    }
  }
  rcl_yaml_node_struct_fini(parameters);
}

// Calls `body`. If it throws, writes the reason to `error` and returns 1; else returns 0.
template <class Body>
int guarded(char* error, size_t error_size, const Body& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& caught) {
    snprintf(error, error_size, "%s", caught.what());
    return 1;
  }
}

}  // namespace

#define ROBOCACHE_ROS2 extern "C" __attribute__((visibility("default")))

ROBOCACHE_ROS2 void* robocache_ros2_open(const char* name, const char* space, int argc, const char* const* argv,
                                         char* error, size_t error_size) {
  Node* node = nullptr;
  guarded(error, error_size, [&] { node = new Node(name, space, argc, argv); });
  return node;
}

ROBOCACHE_ROS2 void robocache_ros2_close(void* node) { delete static_cast<Node*>(node); }

ROBOCACHE_ROS2 int robocache_ros2_subscribe(void* node, const char* topic, const char* type, const char* reliability,
                                            const char* durability, int64_t depth, Sink sink, void* context,
                                            char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    static_cast<Node*>(node)->subscribe(topic, type, reliability, durability, depth, sink, context);
  });
}

ROBOCACHE_ROS2 int robocache_ros2_advertise(void* node, const char* topic, const char* type, char* error,
                                            size_t error_size) {
  return guarded(error, error_size, [&] { static_cast<Node*>(node)->advertise(topic, type); });
}

ROBOCACHE_ROS2 int robocache_ros2_publish(void* node, const uint8_t* bytes, size_t size, char* error,
                                          size_t error_size) {
  return guarded(error, error_size, [&] { static_cast<Node*>(node)->publish(bytes, size); });
}

ROBOCACHE_ROS2 int robocache_ros2_start(void* node, char* error, size_t error_size) {
  return guarded(error, error_size, [&] { static_cast<Node*>(node)->start(); });
}

ROBOCACHE_ROS2 int robocache_ros2_publishers(void* node, size_t subscription, int64_t* counts, char* error,
                                             size_t error_size) {
  return guarded(error, error_size, [&] { static_cast<Node*>(node)->publishers(subscription, counts); });
}

ROBOCACHE_ROS2 int robocache_ros2_parameters(void* node, TakeValue take, char* error, size_t error_size) {
  return guarded(error, error_size, [&] { pass_parameters(*static_cast<Node*>(node), take); });
}

// Fails, with the reason, if the thread has ended by an error.
ROBOCACHE_ROS2 int robocache_ros2_broken(void* node, char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    const std::string reason = static_cast<Node*>(node)->broken();
    if (!reason.empty()) throw std::runtime_error(reason);
  });
}
