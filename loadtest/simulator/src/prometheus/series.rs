//! The generated series. Their values are functions of time, so every range has values.

use serde_json::{Map, Value, json};

/// One time series.
#[derive(Debug)]
pub(super) struct Series {
    labels: Vec<(&'static str, String)>,
    value: fn(time: f64, index: f64) -> f64,
    index: f64,
}

impl Series {
    /// Its labels, including `__name__`.
    pub(super) fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.labels.iter().map(|(name, value)| (*name, value.as_str()))
    }

    pub(super) fn label(&self, name: &str) -> Option<&str> {
        self.labels().find(|(label, _)| *label == name).map(|(_, value)| value)
    }

    pub(super) fn metric(&self) -> Value {
        let labels: Map<String, Value> =
            self.labels().map(|(name, value)| (name.to_owned(), value.into())).collect();
        labels.into()
    }

    pub(super) fn at(&self, time: f64) -> f64 {
        (self.value)(time, self.index)
    }
}

/// Returns all series.
pub(super) fn all() -> Vec<Series> {
    let mut all = Vec::new();
    for (index, job) in ["simulated-api", "simulated-node", "simulated-web"].into_iter().enumerate() {
        all.push(series("up", job, index, &[], |_, _| 1.0));
        for code in ["200", "500"] {
            // The counter is reset every day, as after a restart.
            let value: fn(f64, f64) -> f64 = match code {
                "200" => |time, index| (time.rem_euclid(86_400.0) * (index + 1.0) * 3.0).floor(),
                _ => |time, index| (time.rem_euclid(86_400.0) * (index + 1.0) * 0.05).floor(),
            };
            all.push(series("simulated_requests_total", job, index, &[("code", code)], value));
        }
    }
    all.push(series("node_load1", "simulated-node", 0, &[], |time, _| {
        ((time / 300.0).sin() * 50.0 + 100.0).round() / 100.0
    }));
    all
}

pub(super) fn metadata() -> Value {
    let entry = |kind: &str, help: &str| json!([{ "type": kind, "help": help, "unit": "" }]);
    json!({
        "node_load1": entry("gauge", "1m load average of a node that does not exist."),
        "simulated_requests_total": entry("counter", "Requests nobody sent."),
        "up": entry("gauge", "Whether the simulated target is up, which it is."),
    })
}

fn series(
    name: &str,
    job: &str,
    index: usize,
    labels: &[(&'static str, &str)],
    value: fn(f64, f64) -> f64,
) -> Series {
    let common = [("__name__", name), ("instance", "simulated:9100"), ("job", job)];
    let labels = common.iter().chain(labels).map(|(name, value)| (*name, (*value).to_owned())).collect();
    Series { labels, value, index: index as f64 }
}
