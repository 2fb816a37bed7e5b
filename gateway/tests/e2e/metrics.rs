//! The metrics of the real programs, as `promtool check metrics` reads them.

use std::{collections::BTreeMap, process::Command};

use testing::skip::installed;

use crate::support::{AGENT, Installation, RecordingServer, run, skipped};

/// Returns metrics of OpenMetrics in the text format of Prometheus, which is the only one that `promtool check metrics` reads: there, the
/// name of a counter has its suffix everywhere, and there are no units and no type `info`.
fn prometheus_text(open_metrics: &str) -> String {
    let types = open_metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let types: BTreeMap<&str, &str> = types.collect();
    let convert = |line: &str| {
        let comment = line.strip_prefix("# ").and_then(|comment| comment.split_once(' '));
        let Some((keyword, rest)) = comment else { return Some(line.to_owned()) };
        let (name, text) = rest.split_once(' ')?;
        let (suffix, kind) = match types[name] {
            "counter" => ("_total", "counter"),
            "info" => ("_info", "gauge"),
            "unknown" => ("", "untyped"),
            kind => ("", kind),
        };
        let text = if keyword == "TYPE" { kind } else { text };
        (keyword != "UNIT").then(|| format!("# {keyword} {name}{suffix} {text}"))
    };
    open_metrics.lines().filter_map(convert).map(|line| line + "\n").collect()
}

#[test]
fn promtool_accepts_the_metrics_of_both_programs() {
    if !installed("promtool") {
        return skipped("there is no promtool");
    }
    let upstream = RecordingServer::start();
    let world = Installation::with_prometheus(&format!("http://{}", upstream.address));
    assert_eq!(world.curl(&format!("/agents/{AGENT}/prometheus/api/v1/query?query=up"), &[]).status, 200);
    let of_kas = world.kas.curl(&[&format!("http://{}/metrics", world.kas.observability)]);
    for (program, metrics) in [("kas", of_kas), ("agentk", world.agent.get("/metrics"))] {
        let text = prometheus_text(&metrics.text());
        assert!(text.matches("# TYPE ").count() > 20, "{program}: {text}");
        let output = run(Command::new("promtool").args(["check", "metrics"]), text.as_bytes());
        let findings = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program}: {findings}");
    }
}
