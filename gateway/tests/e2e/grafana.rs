//! Grafana as a client: recorded requests of its Prometheus data source (version 11), each sent to Prometheus
//! itself and through the tunnel.

use secrecy::ExposeSecret as _;

use crate::support::{AGENT, HttpResponse, Installation, Prometheus, curl};

const FORM: &str = "application/x-www-form-urlencoded";

/// The header fields that Grafana adds to every request.
const HEADERS: [&str; 6] = [
    "User-Agent: Grafana/11.3.0",
    "Accept-Encoding: gzip",
    "X-Grafana-Org-Id: 1",
    "X-Dashboard-Uid: ddpxa7p1mrshsc",
    "X-Panel-Id: 2",
    "X-Datasource-Uid: ae2zgrr4h7oxsb",
];

/// A request of Grafana, with an optional form as body.
struct Recorded {
    method: &'static str,
    path: String,
    form: Option<String>,
}

fn get(path: impl Into<String>) -> Recorded {
    Recorded { method: "GET", path: path.into(), form: None }
}

fn post(path: &str, form: impl Into<String>) -> Recorded {
    Recorded { method: "POST", path: path.to_owned(), form: Some(form.into()) }
}

impl Recorded {
    /// Sends the request to a server, with additional arguments for curl.
    fn send(&self, server: &str, more: &[&str]) -> HttpResponse {
        let url = format!("{server}{}", self.path);
        let content_type = format!("Content-Type: {FORM}");
        let mut arguments = vec!["--globoff", "--request", self.method];
        arguments.extend(HEADERS.iter().flat_map(|header| ["--header", header]));
        if let Some(form) = &self.form {
            arguments.extend(["--header", &content_type, "--data-binary", form]);
        }
        arguments.extend(more);
        arguments.push(&url);
        curl(&arguments)
    }
}

/// Asserts that requests have the same response through kas.
///
/// The data source is set up with the URL of the agent, and basic authentication with the caller's name and token.
fn compare(world: &Installation, prometheus: &Prometheus, requests: &[Recorded]) {
    let credential = format!("ops:{}", world.tokens.ops.expose_secret());
    let through = world.kas.url(&format!("/agents/{AGENT}/prometheus"));
    for request in requests {
        let what = format!("{} {} {:?}", request.method, request.path, request.form);
        let direct = request.send(&prometheus.url, &[]);
        let response = request.send(&through, &["--user", &credential]);
        assert_eq!(response.status, direct.status, "{what}: {}", response.text());
        for header in ["content-type", "content-encoding", "vary"] {
            assert_eq!(response.header(header), direct.header(header), "{what}: {header}");
        }
        assert_eq!(response.header("kas-error"), None, "{what}");
        // The bodies are compared compressed: kas and agentk must not decompress them.
        assert_eq!(response.body, direct.body, "{what}");
    }
}

#[test]
fn grafana_data_source_test_succeeds() {
    let Some(prometheus) = Prometheus::or_skip() else { return };
    let world = Installation::with_prometheus(&prometheus.url);
    let sum = post("/api/v1/query", "query=1%2B1&time=4");
    compare(
        &world,
        &prometheus,
        &[post("/api/v1/query", "query=1%2B1&time=4"), get("/api/v1/status/buildinfo")],
    );

    let credential = format!("ops:{}", world.tokens.ops.expose_secret());
    let through = world.kas.url(&format!("/agents/{AGENT}/prometheus"));
    let response = sum.send(&through, &["--user", &credential, "--compressed"]).json();
    assert_eq!(response["data"]["result"], serde_json::json!([4, "2"]));
    let info = get("/api/v1/status/buildinfo").send(&through, &["--user", &credential, "--compressed"]);
    assert_eq!(info.json()["data"]["features"], serde_json::Value::Null, "Grafana would take it for Mimir");

    let wrong = sum.send(&through, &["--user", "ops:wrong", "--compressed"]);
    assert_eq!((wrong.status, wrong.json()["status"].as_str()), (401, Some("error")));
}

#[test]
fn grafana_explore_responses_are_unchanged() {
    let Some(prometheus) = Prometheus::or_skip() else { return };
    let world = Installation::with_prometheus(&prometheus.url);
    let time = prometheus.time;
    let (start, end) = (format!("{:.9}", time - 1.0), format!("{time:.9}"));
    let span = format!("end={end}&start={start}");
    compare(
        &world,
        &prometheus,
        &[
            post(
                "/api/v1/query_range",
                format!("end={end}&query=scrape_samples_scraped&start={start}&step=0.25"),
            ),
            post(
                "/api/v1/query_range",
                format!("end={end}&query=sum+by+%28job%29+%28rate%28up%5B1m%5D%29%29&start={start}&step=15"),
            ),
            post("/api/v1/query", format!("query=up&time={end}&timeout=30s")),
            post("/api/v1/query_exemplars", format!("end={end}&query=up&start={start}")),
            post("/api/v1/query", "query=sum%28"),
            post("/api/v1/labels", &*span),
            post("/api/v1/series", format!("{span}&match%5B%5D=up")),
            get(format!("/api/v1/label/__name__/values?{span}&match%5B%5D=%7Bjob%3D%22self%22%7D")),
            get("/api/v1/metadata"),
            get("/api/v1/rules"),
            get("/api/v1/alerts"),
            post("/api/v1/format_query", "query=sum%28up%29by%28job%29"),
        ],
    );
}

#[test]
fn grafana_variable_and_annotation_responses_are_unchanged() {
    let Some(prometheus) = Prometheus::or_skip() else { return };
    let world = Installation::with_prometheus(&prometheus.url);
    let time = prometheus.time;
    let (start, end) = (time - 1.0, time);
    compare(
        &world,
        &prometheus,
        &[
            // label_names(), label_values(up, job), label_values(job), metrics(scrape_.*), query_result(…)
            get(format!("/api/v1/labels?start={start}&end={end}")),
            get(format!("/api/v1/label/job/values?match[]=up&start={start}&end={end}")),
            get(format!("/api/v1/label/job/values?start={start}&end={end}")),
            get(format!("/api/v1/label/__name__/values?start={start}&end={end}")),
            post("/api/v1/query", format!("query=topk%283%2C+scrape_samples_scraped%29&time={end}")),
            get(format!("/api/v1/query?query=scrape_samples_scraped&time={end}")),
            // Grafana marks the points of this range as annotations.
            post("/api/v1/query_range", format!("end={end}&query=up+%3D%3D+1&start={start}&step=60")),
        ],
    );
}
