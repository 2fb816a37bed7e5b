//! Callers that may only read series with certain labels. Prometheus scrapes itself, and its tenants are the
//! handlers of its own HTTP server.

use std::fs;

use access::token::{self, Holder, TokenHash};
use secrecy::SecretString;
use serde_json::{Value, json};

use crate::support::{AGENT, HttpResponse, Installation, Prometheus, curl, eventually};

const SERIES: &str = "prometheus_http_requests_total";

/// A caller that may read the series of certain handlers.
struct Tenant {
    token: SecretString,
}

impl Tenant {
    /// Adds a tenant to the identity file, and waits until kas has reloaded the file.
    fn new(world: &Installation, handlers: &[&str]) -> Self {
        let token = token::new(Holder::Caller);
        let file = world.directory().join("identity.yaml");
        let mut identity: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        identity["callers"].as_array_mut().unwrap().push(json!({
            "name": "tenant",
            "tokens": [TokenHash::of(&token).to_string()],
            "agents": [AGENT],
            "services": ["prometheus"],
            "prometheus": {"labels": {"handler": handlers}},
        }));
        let new = world.directory().join("identity.new");
        fs::write(&new, identity.to_string()).unwrap();
        fs::rename(new, file).unwrap();
        let tenant = Self { token };
        eventually("kas accepts the token of the tenant", || {
            tenant.get(world, "/api/v1/status/buildinfo", &[]).status == 200
        });
        tenant
    }

    fn get(&self, world: &Installation, path: &str, arguments: &[&str]) -> HttpResponse {
        let path = format!("/agents/{AGENT}/prometheus{path}");
        world.curl_as(&self.token, &path, &[&["--globoff"], arguments].concat())
    }
}

/// Expressions of tenants, and the expected rewritten expressions with the matcher `OURS`.
const EXPRESSIONS: &[(&str, &str)] = &[
    ("prometheus_http_requests_total", "prometheus_http_requests_total{OURS}"),
    ("prometheus_http_requests_total{}", "prometheus_http_requests_total{OURS}"),
    ("prometheus_http_requests_total{code='200',}", "prometheus_http_requests_total{code='200',OURS}"),
    ("prometheus_http_requests_total{handler=~'.*'}", "prometheus_http_requests_total{OURS}"),
    (
        "prometheus_http_requests_total{handler!='/metrics'}",
        "prometheus_http_requests_total{OURS,handler!='/metrics'}",
    ),
    ("{__name__=~'.+'}", "{__name__=~'.+',OURS}"),
    ("{__name__='prometheus_http_requests_total'}", "{__name__='prometheus_http_requests_total',OURS}"),
    ("count({__name__=~'.+'})", "count({__name__=~'.+',OURS})"),
    (
        "sum by (handler) (prometheus_http_requests_total)",
        "sum by (handler) (prometheus_http_requests_total{OURS})",
    ),
    ("sum(prometheus_http_requests_total) by ()", "sum(prometheus_http_requests_total{OURS})"),
    (
        "quantile(scalar(up), prometheus_http_requests_total)",
        "quantile(scalar(up{OURS}), prometheus_http_requests_total{OURS})",
    ),
    ("topk(2, prometheus_http_requests_total)", "topk(2, prometheus_http_requests_total{OURS})"),
    (
        "count_values('v', prometheus_http_requests_total)",
        "count_values('v', prometheus_http_requests_total{OURS})",
    ),
    ("prometheus_http_requests_total or up", "prometheus_http_requests_total{OURS} or up{OURS}"),
    ("up", "up{OURS}"),
    ("absent(up)", "absent(up{OURS})"),
    ("vector(scalar(up))", "vector(scalar(up{OURS}))"),
    (
        "prometheus_http_requests_total / on (handler, code) group_left () prometheus_http_requests_total",
        "prometheus_http_requests_total{OURS} / on (handler, code) group_left () prometheus_http_requests_total{OURS}",
    ),
    ("prometheus_http_requests_total > bool 1", "prometheus_http_requests_total{OURS} > bool 1"),
    ("-prometheus_http_requests_total ^ 2 % 3", "-prometheus_http_requests_total{OURS} ^ 2 % 3"),
    ("prometheus_http_requests_total[1s]", "prometheus_http_requests_total{OURS}[1s]"),
    ("rate(prometheus_http_requests_total[1500ms])", "rate(prometheus_http_requests_total{OURS}[1500ms])"),
    (
        "max_over_time(sum(prometheus_http_requests_total)[2s:500ms] offset 100ms)",
        "max_over_time(sum(prometheus_http_requests_total{OURS})[2s:500ms] offset 100ms)",
    ),
    ("prometheus_http_requests_total offset 200ms", "prometheus_http_requests_total{OURS} offset 200ms"),
    ("prometheus_http_requests_total @ end()", "prometheus_http_requests_total{OURS} @ end()"),
    (
        "histogram_quantile(0.9, sum by (le) (prometheus_http_request_duration_seconds_bucket))",
        "histogram_quantile(0.9, sum by (le) (prometheus_http_request_duration_seconds_bucket{OURS}))",
    ),
    (
        "label_replace(prometheus_http_requests_total, 'to', '\"$1}', 'handler', '/(.*)') # {",
        "label_replace(prometheus_http_requests_total{OURS}, 'to', '\"$1}', 'handler', '/(.*)')",
    ),
    (
        "sort_desc(prometheus_http_requests_total unless up)",
        "sort_desc(prometheus_http_requests_total{OURS} unless up{OURS})",
    ),
    ("1 + 0x1F * 1e2 == bool 3101", "1 + 0x1F * 1e2 == bool 3101"),
    (
        "# {\nprometheus_http_requests_total{code=\"200\" # }\n}",
        "prometheus_http_requests_total{code='200',OURS}",
    ),
];

#[test]
fn tenant_queries_return_only_its_series() {
    let Some(prometheus) = Prometheus::or_skip() else { return };
    let world = Installation::with_prometheus(&prometheus.url);
    let time = format!("time={}", prometheus.time);
    for (handlers, matcher) in [
        (&["/metrics"][..], "handler='/metrics'"),
        (&["/metrics", "/api/v1/query"], "handler=~'/metrics|/api/v1/query'"),
    ] {
        let tenant = Tenant::new(&world, handlers);
        for (expression, allowed) in EXPRESSIONS {
            let requested = format!("query={expression}");
            let allowed = format!("query={}", allowed.replace("OURS", matcher));
            let direct = curl(&[
                "--data-urlencode",
                &allowed,
                "--data-urlencode",
                &time,
                &format!("{}/api/v1/query", prometheus.url),
            ]);
            assert_eq!(direct.status, 200, "{allowed}: {}", direct.text());
            let form = ["--data-urlencode", &requested, "--data-urlencode", &time];
            for method in [&[][..], &["--get"]] {
                let response = tenant.get(&world, "/api/v1/query", &[&form, method].concat());
                assert_eq!(response.status, 200, "{expression}: {}", response.text());
                assert_eq!(response.json(), direct.json(), "{expression}");
            }
        }
    }

    // Prometheus has series of several handlers, and the tenant sees those of its own only.
    let all = prometheus.get_json(&format!("/api/v1/query?query=count({SERIES})%20by%20(handler)&{time}"));
    assert!(all["data"]["result"].as_array().unwrap().len() > 1, "{all}");
    let tenant = Tenant::new(&world, &["/metrics"]);
    let seen = tenant.get(&world, &format!("/api/v1/query?query={SERIES}&{time}"), &[]).json();
    let handlers: Vec<_> = seen["data"]["result"]
        .as_array()
        .unwrap()
        .iter()
        .map(|series| &series["metric"]["handler"])
        .collect();
    assert!(!handlers.is_empty() && handlers.iter().all(|handler| **handler == "/metrics"), "{seen}");
}

#[test]
fn tenant_lists_contain_only_its_series() {
    let Some(prometheus) = Prometheus::or_skip() else { return };
    let world = Installation::with_prometheus(&prometheus.url);
    let tenant = Tenant::new(&world, &["/metrics"]);
    let end = format!("end={}", prometheus.time);
    let own = "%7Bhandler%3D%22/metrics%22%7D";
    for (requested, direct) in [
        (
            format!("/api/v1/series?match[]={SERIES}&{end}"),
            format!("/api/v1/series?match[]={SERIES}{own}&{end}"),
        ),
        (
            format!("/api/v1/series?match%5B%5D={SERIES}&match[]=up&{end}"),
            format!("/api/v1/series?match[]={SERIES}{own}&match[]=up{own}&{end}"),
        ),
        (format!("/api/v1/labels?{end}"), format!("/api/v1/labels?match[]={own}&{end}")),
        (format!("/api/v1/labels?match[]=up&{end}"), format!("/api/v1/labels?match[]=up{own}&{end}")),
        (
            format!("/api/v1/label/handler/values?{end}"),
            format!("/api/v1/label/handler/values?match[]={own}&{end}"),
        ),
        (
            format!("/api/v1/label/__name__/values?{end}"),
            format!("/api/v1/label/__name__/values?match[]={own}&{end}"),
        ),
        (
            format!("/api/v1/label/job/values?match[]=up&{end}"),
            format!("/api/v1/label/job/values?match[]=up{own}&{end}"),
        ),
        (
            format!("/api/v1/query_range?query={SERIES}&start={0}&{end}&step=0.5", prometheus.time - 1.0),
            format!(
                "/api/v1/query_range?query={SERIES}{own}&start={0}&{end}&step=0.5",
                prometheus.time - 1.0
            ),
        ),
        (
            format!("/api/v1/query_exemplars?query=up&start=0&{end}"),
            format!("/api/v1/query_exemplars?query=up{own}&start=0&{end}"),
        ),
        (
            "/api/v1/format_query?query=sum(up)by(job)".to_owned(),
            "/api/v1/format_query?query=sum(up)by(job)".to_owned(),
        ),
    ] {
        let response = tenant.get(&world, &requested, &[]);
        assert_eq!(response.status, 200, "{requested}: {}", response.text());
        let direct = curl(&["--globoff", &format!("{}{direct}", prometheus.url)]).json();
        assert_eq!(response.json(), direct, "{requested}");
    }
    let values = tenant.get(&world, &format!("/api/v1/label/handler/values?{end}"), &[]).json();
    assert_eq!(values["data"], json!(["/metrics"]));

    let federated = tenant.get(&world, "/federate?match[]=%7B__name__=~%22.%2B%22%7D", &[]).text();
    let samples: Vec<_> =
        federated.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert!(
        !samples.is_empty() && samples.iter().all(|line| line.contains("handler=\"/metrics\"")),
        "{federated}"
    );
    let bare = tenant.get(&world, "/federate", &[]).text();
    assert!(bare.contains("handler=\"/metrics\"") && !bare.contains("handler=\"/api"), "{bare}");
}

#[test]
fn unenforceable_tenant_requests_are_refused() {
    let Some(prometheus) = Prometheus::or_skip() else { return };
    let world = Installation::with_prometheus(&prometheus.url);
    let tenant = Tenant::new(&world, &["/metrics"]);
    for (path, arguments) in [
        ("/api/v1/metadata", &[][..]),
        ("/api/v1/targets", &[]),
        ("/api/v1/rules", &[]),
        ("/api/v1/alerts", &[]),
        ("/api/v1/read", &["--data-binary", "x"]),
        ("/api/v1/status/tsdb", &[]),
        ("/api/v1/query", &["--form", "query=up"]),
        ("/api/v1/query", &["--json", "{\"query\":\"up\"}"]),
        ("/api/v1/query/?query=up", &[]),
        ("/api/v1/label/job%2F..%2F..%2Ftargets%3F/values", &[]),
    ] {
        let response = tenant.get(&world, path, arguments);
        assert_eq!((response.status, response.header("kas-error")), (403, Some("not-enforceable")), "{path}");
        assert_eq!(response.json()["errorType"], "forbidden", "{path}");
    }
    for path in
        ["/api/v1/query?query=up;x", "/api/v1/query?query=sum(", "/api/v1/query?query=up%", "/api/v1/query"]
    {
        let response = tenant.get(&world, path, &[]);
        assert_eq!((response.status, response.header("kas-error")), (400, Some("bad-request")), "{path}");
        assert_eq!(response.json()["errorType"], "bad_data", "{path}");
    }
}
