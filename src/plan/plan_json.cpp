#include <algorithm>
#include <map>

#include "dmuon/core/error.h"
#include "dmuon/core/hash.h"
#include "dmuon/core/text.h"
#include "dmuon/plan/plan.h"
#include "plan/report.h"
#include "plan/validate.h"

namespace dmuon {
namespace {

constexpr int64_t plan_version = 2;

template <class T>
Json array_of(const std::vector<T>& values) {
  Json out = Json::array();
  for (const T& value : values) out.push_back(value);
  return out;
}

std::vector<int64_t> integers(const Json& json) {
  std::vector<int64_t> values;
  for (const Json& value : json.as_array()) values.push_back(value.as_integer());
  return values;
}

int small_integer(const Json& json, std::string_view key, int least, int most) {
  const int64_t value = json.at(key).as_integer();
  if (value < least || value > most) throw ConfigError(text("\"", key, "\" is ", value, ", expected ", least, " to ", most));
  return static_cast<int>(value);
}

PlanSearch read_search(const Json& json) {
  PlanSearch search;
  search.method = json.at("method").as_string();
  search.measured = json.at("measured").as_bool();
  search.greedy_makespan = json.at("greedy_makespan").as_number();
  search.milp_makespan = json.at("milp_makespan").as_number();
  search.lower_bound = json.at("lower_bound").as_number();
  search.variables = json.at("variables").as_integer();
  search.seconds = json.at("seconds").as_number();
  search.fallback = json.at("fallback").as_string();
  return search;
}

// Throws ConfigError from the accessors of Json; plan_from_json adds the origin.
Plan read_plan(const Json& json, const std::vector<PlanTensor>& tensors) {
  std::map<std::string, int, std::less<>> index_of;
  for (size_t i = 0; i < tensors.size(); ++i)
    if (!index_of.emplace(tensors[i].name, static_cast<int>(i)).second)
      throw ConfigError(text("two tensors of the inventory are named ", tensors[i].name));
  const auto find = [&](const Json& name) {
    const auto found = index_of.find(name.as_string());
    if (found == index_of.end()) throw ConfigError(text("tensor ", name.as_string(), " is not in the model"));
    return found->second;
  };
  if (json.at("version").as_integer() != plan_version)
    throw ConfigError(text("version ", json.at("version").as_integer(), " of the plan's format, expected ", plan_version));

  constexpr int many = 1 << 24;
  Plan plan;
  plan.strategy = json.at("strategy").as_string();
  plan.slots = small_integer(json, "slots", 1, many);
  plan.replicas = small_integer(json, "replicas", 1, plan.slots);
  plan.shards = small_integer(json, "shards", 1, plan.slots);
  plan.cut_elements = json.at("cut_elements").as_integer();
  plan.lower_bound = json.at("lower_bound").as_number();
  plan.search = read_search(json.at("search"));
  for (const Json& load : json.at("loads").as_array()) plan.loads.push_back(load.as_number());
  plan.owners.assign(tensors.size(), -1);
  for (const Json& row : json.at("units").as_array()) {
    UnitLayout layout;
    layout.elements = row.at("elements").as_integer();
    layout.cuts = integers(row.at("cuts"));
    plan.window_of_unit.push_back(small_integer(row, "window", 0, many));
    for (const Json& entry : row.at("tensors").as_array()) {
      const int tensor = find(entry.at("tensor"));
      const PlanTensor& declared = tensors[static_cast<size_t>(tensor)];
      if (entry.at("whole").as_bool() != declared.whole)
        throw ConfigError(
            text("tensor ", declared.name, declared.whole ? " needs its owner whole" : " may be cut", ", the plan says otherwise"));
      layout.entries.push_back({tensor, entry.at("offset").as_integer(), declared.shape.elements()});
      plan.owners[static_cast<size_t>(tensor)] = small_integer(entry, "owner", 0, plan.slots - 1);
    }
    plan.units.push_back(std::move(layout));
  }
  for (const Json& row : json.at("batches").as_array()) {
    PlanBatch batch;
    batch.slot = small_integer(row, "slot", 0, plan.slots - 1);
    batch.window = small_integer(row, "window", 0, many);
    batch.cost = row.at("cost").as_number();
    for (const Json& name : row.at("tensors").as_array()) batch.tensors.push_back(find(name));
    plan.batches.push_back(std::move(batch));
  }
  return plan;
}

}  // namespace

Json search_json(const PlanSearch& search) {
  Json out = Json::object();
  out.set("method", search.method);
  out.set("measured", search.measured);
  out.set("greedy_makespan", search.greedy_makespan);
  out.set("milp_makespan", search.milp_makespan);
  out.set("lower_bound", search.lower_bound);
  out.set("variables", search.variables);
  out.set("seconds", search.seconds);
  out.set("fallback", search.fallback);
  return out;
}

Json Plan::to_json(const std::vector<PlanTensor>& tensors) const {
  Json units_json = Json::array();
  for (size_t unit_index = 0; unit_index < units.size(); ++unit_index) {
    const UnitLayout& layout = units[unit_index];
    Json unit = Json::object();
    unit.set("window", window_of_unit[unit_index]);
    unit.set("elements", layout.elements);
    unit.set("cuts", array_of(layout.cuts));
    Json entries = Json::array();
    for (const auto& entry : layout.entries) {
      Json row = Json::object();
      row.set("tensor", tensors[static_cast<size_t>(entry.tensor)].name);
      row.set("offset", entry.offset);
      row.set("owner", owners[static_cast<size_t>(entry.tensor)]);
      row.set("whole", tensors[static_cast<size_t>(entry.tensor)].whole);
      entries.push_back(row);
    }
    unit.set("tensors", entries);
    units_json.push_back(unit);
  }
  Json batches_json = Json::array();
  for (const PlanBatch& batch : batches) {
    Json row = Json::object();
    row.set("slot", batch.slot);
    row.set("window", batch.window);
    row.set("cost", batch.cost);
    Json names = Json::array();
    for (int tensor : batch.tensors) names.push_back(tensors[static_cast<size_t>(tensor)].name);
    row.set("tensors", names);
    batches_json.push_back(row);
  }
  Json out = Json::object();
  out.set("version", plan_version);
  out.set("strategy", strategy);
  out.set("slots", slots);
  out.set("replicas", replicas);
  out.set("shards", shards);
  out.set("cut_elements", cut_elements);
  out.set("makespan", makespan());
  out.set("lower_bound", lower_bound);
  out.set("search", search_json(search));
  out.set("loads", array_of(loads));
  out.set("units", units_json);
  out.set("batches", batches_json);
  return out;
}

Plan plan_from_json(const Json& json, const std::vector<PlanTensor>& tensors, int units, std::string_view origin) {
  try {
    Plan plan = read_plan(json, tensors);
    validate_plan(plan, tensors, units);
    return plan;
  } catch (const ConfigError& error) {
    throw CheckpointError(
        text(origin, ": the plan does not fit this model: ", error.what(), "; start without the stored plan to make a new one"));
  }
}

uint64_t Plan::hash() const {
  StreamingHash hash;
  const auto add = [&](int64_t value) { hash.update(&value, sizeof value); };
  add(slots);
  add(replicas);
  add(shards);
  add(cut_elements);
  for (int owner : owners) add(owner);
  for (int window : window_of_unit) add(window);
  for (const UnitLayout& layout : units) {
    add(layout.elements);
    for (int64_t cut : layout.cuts) add(cut);
    for (const auto& entry : layout.entries) {
      add(entry.tensor);
      add(entry.offset);
    }
  }
  for (const PlanBatch& batch : batches) {
    add(batch.slot);
    add(batch.window);
    add(static_cast<int64_t>(batch.tensors.size()));
    for (int tensor : batch.tensors) add(tensor);
  }
  return hash.digest();
}

}  // namespace dmuon
