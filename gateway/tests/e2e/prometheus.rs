//! Queries to a real Prometheus, as promtool, Grafana and curl send them.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    process::Command,
    thread,
    time::Duration,
};

use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use crate::support::{AGENT, Agent, Cluster, Installation, Prometheus, curl, eventually, pod_manifest, run};

const SERIES: &str = "prometheus_http_requests_total";
/// A metric whose values do not depend on the duration of scrapes.
const STABLE: &str = "scrape_samples_scraped";

fn through(path: &str) -> String {
    format!("/agents/{AGENT}/prometheus{path}")
}

#[test]
fn query_responses_equal_those_of_prometheus() {
    let Some(prometheus) = Prometheus::or_skip() else { return };
    let world = Installation::with_prometheus(&prometheus.url);
    let time = prometheus.time;
    let range = format!("start={}&end={time}&step=0.2", time - 1.0);
    for path in [
        format!("/api/v1/query?query=up&time={time}"),
        format!("/api/v1/query?query=sum%20by%20(handler)%20({SERIES})&time={time}"),
        format!("/api/v1/query?query={STABLE}%5B1s%5D&time={time}"),
        format!("/api/v1/query_range?query={STABLE}&{range}"),
        format!("/api/v1/series?match%5B%5D=up&match%5B%5D={SERIES}%7Bcode%3D%22200%22%7D&end={time}"),
        "/api/v1/labels?match%5B%5D=up".to_owned(),
        "/api/v1/label/job/values".to_owned(),
        "/api/v1/label/__name__/values?match%5B%5D=up".to_owned(),
        "/api/v1/metadata?metric=prometheus_build_info".to_owned(),
        "/api/v1/query_exemplars?query=up".to_owned(),
        "/api/v1/format_query?query=sum(up)by(job)".to_owned(),
        "/api/v1/status/buildinfo".to_owned(),
        "/api/v1/rules".to_owned(),
        "/api/v1/alerts".to_owned(),
    ] {
        let response = world.curl(&through(&path), &[]);
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        assert_eq!(response.json(), prometheus.get_json(&path), "{path}");
        assert_eq!(response.header("content-type"), Some("application/json"), "{path}");
    }

    // The responses above are not empty.
    let gzip = world.curl(&through(&format!("/api/v1/query?query=up&time={time}")), &["--compressed"]);
    assert_eq!(gzip.json()["data"]["result"][0]["value"][1], "1");
}

/// GitLab's agentk has no request type for PromQL: kas asks the API server, which is a proxy to Services.
#[test]
fn queries_reach_a_service_of_the_cluster_over_gitlabs_protocol() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let node = cluster.kubectl.ok(&[
        "get",
        "nodes",
        "--output",
        "jsonpath={.items[0].status.addresses[?(@.type==\"InternalIP\")].address}",
    ]);
    let Some(prometheus) = Prometheus::at_or_skip(&node) else { return };
    let namespace = cluster.namespace("promql");
    let port: u16 = prometheus.url.rsplit(':').next().unwrap().parse().unwrap();
    // The API server proxies to the address of a pod only: that of this one is the node's, where Prometheus listens.
    let mut pod: Value = serde_json::from_str(&pod_manifest("prometheus", "sleep 600")).unwrap();
    pod["spec"]["hostNetwork"] = json!(true);
    let ports = json!([{"port": 9090, "targetPort": port}]);
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "prometheus"},
        "spec": {"selector": {"app": "prometheus"}, "ports": ports},
    });
    for object in [pod, service] {
        namespace.kubectl.ok_with_stdin(&["create", "--filename=-"], &object.to_string());
    }
    let mut world = Installation::start(&cluster.kubeconfig, |options, certificates| {
        options.public_tls = Some(certificates);
        options.prometheus_service = Some(format!("{}/prometheus:9090", namespace.name));
    });
    world.agent.process.terminate();
    world.agent.process.exit_code();
    world.agent_options.gitlab_protocol = true;
    let _agent = Agent::start(world.directory(), &world.agent_options);
    eventually("agentk is connected", || world.kas.metric("kas_tunnels") == 1.0);

    let time = prometheus.time;
    for path in [
        format!("/api/v1/query?query=up&time={time}"),
        format!("/api/v1/query?query={STABLE}%5B1s%5D&time={time}"),
        "/api/v1/label/job/values".to_owned(),
    ] {
        let mut response = world.curl(&through(&path), &[]);
        // The API server learns of the endpoint a moment after the pod is ready.
        eventually("the API server reaches the Service", || {
            response = world.curl(&through(&path), &[]);
            response.status == 200
        });
        assert_eq!(response.json(), prometheus.get_json(&path), "{path}");
    }
    let form = ["--data-urlencode", "query=sum(up)", "--data-urlencode", &format!("time={time}")];
    let response = world.curl(&through("/api/v1/query"), &form);
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.json()["data"]["result"][0]["value"][1], "1");
    let refused = world.curl(&through("/api/v1/query?query=sum("), &[]);
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert_eq!(refused.json()["errorType"], "bad_data", "the error is that of Prometheus");
    let admin = world.curl(&through("/api/v1/admin/tsdb/snapshot"), &["--request", "POST"]);
    assert_eq!((admin.status, admin.header("kas-error")), (403, Some("not-proxied")));
}

#[test]
fn posted_forms_are_forwarded() {
    let Some(prometheus) = Prometheus::or_skip() else { return };
    let world = Installation::with_prometheus(&prometheus.url);
    let time = format!("time={}", prometheus.time);
    let long = format!("query=up{}", " or up".repeat(2000));
    for query in ["query=sum(up)", "query=up * 2 + 1", &long] {
        let form = ["--data-urlencode", query, "--data-urlencode", &time];
        let url = format!("{}/api/v1/query", prometheus.url);
        let direct = curl(&[&[&*url], &form[..]].concat());
        let response = world.curl(&through("/api/v1/query"), &form);
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(response.json(), direct.json());
    }
}

#[test]
fn prometheus_errors_are_forwarded_unchanged() {
    let Some(prometheus) = Prometheus::or_skip() else { return };
    let world = Installation::with_prometheus(&prometheus.url);
    for (path, status) in [
        ("/api/v1/query?query=sum(", 400),
        ("/api/v1/query", 400),
        ("/api/v1/query_range?query=up&start=1&end=0&step=1", 400),
        ("/api/v1/series", 400),
        ("/api/v1/label/no-such%2Dlabel!/values", 400),
    ] {
        let response = world.curl(&through(path), &[]);
        let direct = curl(&[&format!("{}{path}", prometheus.url)]);
        assert_eq!((response.status, direct.status), (status, status), "{path}: {}", direct.text());
        assert_eq!(response.body, direct.body, "{path}");
        assert_eq!(response.header("kas-error"), None, "the error is not of kas");
    }

    let response = world.curl(&through("/api/v1/query?query=up&timeout=0.0000001"), &[]);
    assert_eq!((response.status, response.header("kas-error")), (503, None));
    assert_eq!(
        response.json()["errorType"],
        "timeout",
        "the query timed out in the queue of Prometheus or during its execution"
    );
}

#[test]
fn promtool_has_the_same_output() {
    let Some(prometheus) = Prometheus::or_skip() else { return };
    let world = Installation::with_prometheus(&prometheus.url);
    let token = world.tokens.ops.expose_secret();
    let url = world.kas.url(&through("")).replace("http://", &format!("http://ops:{token}@"));
    let (time, earlier) = (prometheus.time, prometheus.time - 1.0);
    let (at, start, end) = (format!("--time={time}"), format!("--start={earlier}"), format!("--end={time}"));
    for (before, after) in [
        (&["instant", &*at][..], &["sum by (job) (up)"][..]),
        (&["instant", &*at, "--format=json"], &[STABLE]),
        (&["range", &*start, &*end, "--step=200ms"], &[STABLE]),
        (&["series", "--match=up", &*start, &*end], &[]),
        (&["labels", &*start, &*end], &["job"]),
        (&["instant"], &["sum("]),
    ] {
        let [through, direct] = [&*url, &*prometheus.url].map(|server| {
            let output = run(Command::new("promtool").arg("query").args(before).arg(server).args(after), b"");
            (output.status.code(), output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
        });
        assert_eq!(through, direct, "{before:?} {after:?}");
    }
}

#[test]
fn requests_other_than_queries_are_refused() {
    let Some(prometheus) = Prometheus::or_skip() else { return };
    let world = Installation::with_prometheus(&prometheus.url);
    for (method, path) in [
        ("POST", "/api/v1/write"),
        ("POST", "/api/v1/admin/tsdb/snapshot"),
        ("POST", "/api/v1/admin/tsdb/delete_series?match[]=up"),
        ("PUT", "/api/v1/admin/tsdb/clean_tombstones"),
        ("POST", "/-/reload"),
        ("POST", "/-/quit"),
        ("GET", "/api/v1/status/config"),
        ("GET", "/debug/pprof/heap"),
        ("GET", "/api/v1/query/../admin/tsdb/snapshot"),
        ("POST", "/api/v1/%61dmin/tsdb/snapshot"),
        ("POST", "//-/quit"),
    ] {
        let response = world.curl(&through(path), &["--globoff", "--path-as-is", "--request", method]);
        assert_eq!(
            (response.status, response.header("kas-error")),
            (403, Some("not-proxied")),
            "{method} {path}"
        );
        let envelope = response.json();
        assert_eq!((&envelope["status"], &envelope["errorType"]), (&"error".into(), &"forbidden".into()));
    }
    let delete = ["--globoff", "--request", "DELETE"];
    let response = world.curl(&through("/api/v1/series?match[]=up"), &delete);
    assert_eq!((response.status, response.header("kas-error")), (405, Some("method-not-allowed")));
    assert_eq!(
        (response.header("allow"), &response.json()["errorType"]),
        (Some("GET, POST"), &"bad_data".into())
    );
    assert_eq!(
        prometheus.get_json("/api/v1/query?query=vector(1)")["status"],
        "success",
        "Prometheus still runs"
    );
}

#[test]
fn absent_agent_gets_503_in_prometheus_envelope() {
    let world = Installation::with_prometheus("http://127.0.0.1:1");
    let absent = world.curl("/agents/absent/prometheus/api/v1/query?query=up", &[]);
    assert_eq!((absent.status, absent.header("kas-error")), (503, Some("agent-not-connected")));
    assert!(absent.header("retry-after").is_some_and(|seconds| seconds.parse::<u32>().is_ok()));
    let envelope = absent.json();
    assert_eq!((&envelope["status"], &envelope["errorType"]), (&"error".into(), &"unavailable".into()));
    assert!(envelope["error"].as_str().unwrap().contains("agent absent is not connected"), "{envelope}");

    let down = world.curl(&through("/api/v1/query?query=up"), &[]);
    assert_eq!((down.status, down.header("kas-error")), (502, Some("cluster-unreachable")));
    let what = down.json()["error"].as_str().unwrap().to_owned();
    assert!(what.contains("127.0.0.1:1") && what.contains("refused"), "{what}");
}

/// The query takes longer than all other timeouts of kas and agentk.
#[test]
fn slow_query_does_not_time_out() {
    const SLOW: Duration = Duration::from_secs(35);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        assert!(connection.read(&mut request).unwrap() > 0);
        thread::sleep(SLOW);
        connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nslowly").unwrap();
    });
    let response = Installation::with_prometheus(&url).curl(&through("/api/v1/query?query=up"), &[]);
    assert_eq!((response.status, &*response.text()), (200, "slowly"));
}
