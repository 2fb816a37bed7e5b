//! The metrics of the real programs, as `promtool check metrics` reads them.

use std::process::Command;

use testing::skip::installed;

use crate::support::{AGENT, Installation, RecordingServer, run, skipped};

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
        let text = metrics.text();
        assert!(text.matches("# TYPE ").count() > 20, "{program}: {text}");
        let output = run(Command::new("promtool").args(["check", "metrics"]), text.as_bytes());
        let findings = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program}: {findings}");
    }
}
