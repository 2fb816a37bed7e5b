//! The health of a Pod, with the words of its containers, its node and its scheduler.

use std::time::{Duration, SystemTime};

use proto::graph::HealthState;
use serde_json::Value;

use crate::{
    Assessment, IGNORE_RESTART_POLICY, condition, degraded, healthy, is_true, message, number, progressing,
};

/// The time for which a container runs until its crashes are forgotten. The kubelet resets its back-off after the same time ("Pod
/// Lifecycle" in the documentation of Kubernetes).
const STABLE: Duration = Duration::from_secs(600);
/// The restarts from which on a container crashes again and again.
const CRASH_LOOP: i64 = 2;
/// The longest last words of a container, in characters.
const MAX_WORDS: usize = 200;

/// Assesses a Pod.
pub(crate) fn assess(object: &Value, now: SystemTime) -> Assessment {
    let (always, phase) = (restarts(object), text(object, "/status/phase"));
    // A container that ends may be meant to, but none is meant to wait for an image that does not exist.
    let waits = matches!(phase, "" | "Pending" | "Running");
    if waits && let Some(reason) = waiting_failures(object) {
        return degraded(reason);
    }
    match phase {
        "Succeeded" => healthy(),
        "Failed" => degraded(failure(object)),
        "Running" if always => running(object, now),
        "Running" => progressing("it is running, and has not ended"),
        "" => progressing("it has no phase"),
        "Unknown" => Assessment { health: HealthState::Unknown, reason: lost(object) },
        _ => match init_crash_loop(object, now) {
            Some(crash) => degraded(crash),
            None => progressing(pending(object)),
        },
    }
}

/// Returns when the crashes of all containers of a ready Pod are forgotten.
pub(crate) fn healthy_from(object: &Value) -> Option<SystemTime> {
    let is_ready = text(object, "/status/phase") == "Running" && restarts(object) && is_true(object, "Ready");
    let crashed = containers(object).filter_map(stable_from).max();
    crashed.filter(|_| is_ready)
}

fn running(object: &Value, now: SystemTime) -> Assessment {
    // A container that has just crashed has no reason to wait yet.
    let looping = containers(object).find(|container| stable_from(container).is_some_and(|time| time > now));
    if let Some(crash) = looping.and_then(crash) {
        return degraded(crash);
    }
    if is_true(object, "Ready") {
        return healthy();
    }
    let unready = containers(object).filter(|container| container["ready"] == false);
    let mut reasons = unready.map(|container| (probe_failure(container), crash(container)));
    let Some((probe, crash)) = reasons.next() else {
        let gate = condition(object, "Ready").filter(|ready| ready["reason"] == "ReadinessGatesNotReady");
        return progressing(match gate {
            Some(gate) => format!("it is not ready: {}", message(gate)),
            None => "it is not ready".to_owned(),
        });
    };
    match (probe, crash) {
        (Some(probe), Some(crash)) => degraded(format!("{probe}; {crash}")),
        (None, Some(crash)) => degraded(crash),
        (Some(probe), None) => progressing(probe),
        (None, None) => progressing("it is not ready"),
    }
}

/// Returns why a Pod does not run yet.
fn pending(object: &Value) -> String {
    if let Some(scheduled) = condition(object, "PodScheduled").filter(|found| found["status"] == "False") {
        return match scheduled["reason"].as_str() {
            Some("SchedulingGated") => format!("it must not be scheduled yet: {}", message(scheduled)),
            _ => format!("no node can run it: {}", message(scheduled)),
        };
    }
    if let Some(words) = object.pointer("/status/message").and_then(Value::as_str) {
        return words.to_owned();
    }
    let ended = |container: &Value| container["state"]["terminated"]["exitCode"] == 0;
    let state = |container: &Value, key: &str| container["state"].get(key).is_some();
    // Sidecars run beside the containers after them.
    let first = list(object, "/status/initContainerStatuses")
        .find(|container| !ended(container) && container["started"] != true);
    match first {
        Some(container) if state(container, "terminated") => {
            crash(container).unwrap_or_else(|| "an init container has failed".to_owned())
        }
        Some(container) if state(container, "running") => match crash(container) {
            Some(crash) => format!("init container {} runs again: {crash}", name(container)),
            None => format!("init container {} has not ended", name(container)),
        },
        _ if text(object, "/spec/nodeName").is_empty() => "it waits for a node".to_owned(),
        _ => "its node prepares its containers".to_owned(),
    }
}

/// Returns the crashes of an init container that crashes again and again, also between two of them.
fn init_crash_loop(object: &Value, now: SystemTime) -> Option<String> {
    let is_looping = |container: &&Value| {
        let has_crashed = container["state"]["terminated"]["exitCode"].as_i64().is_some_and(|code| code != 0);
        let is_down = has_crashed && number(container, "/restartCount") + 1 >= CRASH_LOOP;
        is_down || stable_from(container).is_some_and(|time| time > now)
    };
    list(object, "/status/initContainerStatuses").find(is_looping).and_then(crash)
}

/// Returns the errors for which containers wait.
fn waiting_failures(object: &Value) -> Option<String> {
    let failures: Vec<String> = containers(object).filter_map(waiting_failure).collect();
    (!failures.is_empty()).then(|| failures.join("; "))
}

fn waiting_failure(container: &Value) -> Option<String> {
    let waiting = &container["state"]["waiting"];
    let (reason, name) = (waiting["reason"].as_str()?, name(container));
    let words = waiting["message"].as_str().filter(|words| !words.is_empty()).unwrap_or(reason);
    if reason == "CrashLoopBackOff" {
        let Some(crash) = crash(container) else { return Some(format!("container {name}: {words}")) };
        let pause = words.strip_prefix("back-off ").and_then(|rest| rest.split_once(" restarting"));
        return Some(match pause {
            Some((pause, _)) => format!("{crash}; the pause before its next start is {pause}"),
            None => crash,
        });
    }
    let fails = reason.starts_with("Err") || reason.ends_with("Error") || reason.ends_with("BackOff");
    if reason.contains("Image") && (fails || reason == "InvalidImageName") {
        return Some(format!("the image of container {name} cannot be pulled: {words}"));
    }
    fails.then(|| format!("container {name} cannot be started: {words}"))
}

/// Returns why a running container is not ready: the probe that fails.
fn probe_failure(container: &Value) -> Option<String> {
    container["state"].get("running")?;
    let name = name(container);
    Some(if container["started"] == false {
        format!("container {name} runs, and its startup probe has not succeeded yet")
    } else {
        format!("container {name} runs, and its readiness probe fails")
    })
}

/// Returns how often and how a container has crashed.
fn crash(container: &Value) -> Option<String> {
    let current = container["state"].get("terminated");
    let end = current.or_else(|| container["lastState"].get("terminated"))?;
    // The run that has ended last is not restarted yet.
    let is_down = container["state"].get("running").is_none();
    let times = number(container, "/restartCount") + i64::from(is_down);
    let (verb, cause) = cause(end);
    let times = if times > 1 { format!(" {times} times, the last time") } else { String::new() };
    Some(format!("container {} {verb}{times} {cause}", name(container)))
}

/// Returns the verb for the end of a container, and its cause with the last words.
fn cause(end: &Value) -> (&'static str, String) {
    let words = last_words(end);
    let code = end["exitCode"].as_i64().unwrap_or(0);
    let signal = match code {
        132 => " (SIGILL)",
        134 => " (SIGABRT)",
        135 => " (SIGBUS)",
        136 => " (SIGFPE)",
        137 => " (SIGKILL)",
        139 => " (SIGSEGV)",
        143 => " (SIGTERM)",
        _ => "",
    };
    match end["reason"].as_str() {
        Some("OOMKilled") => ("crashed", format!("because it ran out of memory (OOMKilled){words}")),
        Some("StartError" | "ContainerCannotRun") => {
            ("crashed", format!("because it could not be started{words}"))
        }
        _ if code == 0 => ("ended", format!("with exit code 0{words}")),
        _ => ("crashed", format!("with exit code {code}{signal}{words}")),
    }
}

/// Returns the last line of the termination message, after a colon. With `terminationMessagePolicy: FallbackToLogsOnError` it is that of
/// the log.
fn last_words(end: &Value) -> String {
    let mut lines = end["message"].as_str().unwrap_or_default().lines().map(str::trim);
    match lines.rfind(|line| !line.is_empty()) {
        Some(line) => format!(": {}", line.chars().take(MAX_WORDS).collect::<String>()),
        None => String::new(),
    }
}

/// Returns why the state of a Pod is not known.
fn lost(object: &Value) -> String {
    let words = ["/status/message", "/status/reason"].into_iter().map(|pointer| text(object, pointer));
    let words = words.filter(|words| !words.is_empty()).map(str::to_owned).next();
    words.unwrap_or_else(|| "its node does not respond".to_owned())
}

/// Returns why a Pod has failed.
fn failure(object: &Value) -> String {
    if let Some(words) = object.pointer("/status/message").and_then(Value::as_str) {
        return match text(object, "/status/reason") {
            "Evicted" => format!("its node has evicted it: {words}"),
            _ => words.to_owned(),
        };
    }
    let failed = containers(object).find(|container| {
        let end = &container["state"]["terminated"];
        end["exitCode"].as_i64().is_some_and(|code| code != 0) || end["message"].is_string()
    });
    failed.and_then(crash).unwrap_or_else(|| "it has failed".to_owned())
}

/// Returns when a container that crashes again and again has run long enough, if it runs now.
fn stable_from(container: &Value) -> Option<SystemTime> {
    let time = |value: &Value| humantime::parse_rfc3339_weak(value.as_str()?).ok();
    let last = container["lastState"].get("terminated")?;
    let started = time(&container["state"].get("running")?["startedAt"])?;
    let run = time(&last["finishedAt"])?.duration_since(time(&last["startedAt"])?).unwrap_or_default();
    (number(container, "/restartCount") >= CRASH_LOOP && run < STABLE).then(|| started + STABLE)
}

/// Returns whether the containers of a Pod are restarted whenever they end.
fn restarts(object: &Value) -> bool {
    let policy = object.pointer("/spec/restartPolicy").and_then(Value::as_str).unwrap_or("Always");
    policy == "Always" || object["metadata"]["annotations"][IGNORE_RESTART_POLICY] == "true"
}

fn containers(object: &Value) -> impl Iterator<Item = &Value> {
    list(object, "/status/initContainerStatuses").chain(list(object, "/status/containerStatuses"))
}

fn list<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

fn name(container: &Value) -> &str {
    container["name"].as_str().unwrap_or_default()
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
