use std::collections::BTreeMap;

use http::StatusCode;
use http_body_util::Full;
use request_info::prometheus::SeriesLabels;

use super::{complexity::MAX_OPERATIONS, *};

fn labels(labels: &[(&str, &[&str])]) -> Labels {
    let owned = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
    let map: BTreeMap<_, _> =
        labels.iter().map(|(name, values)| ((*name).to_owned(), owned(values))).collect();
    Labels::new(&SeriesLabels::new(map).unwrap()).unwrap()
}

fn team_a() -> Labels {
    labels(&[("ns", &["a"])])
}

fn rewrite(query: &str) -> Result<String, QueryError> {
    Rewriter::new(&team_a()).expression(query)
}

#[test]
fn every_selector_gets_the_matcher() {
    for (query, rewritten) in [
        ("up", r#"up{ns="a"}"#),
        ("up{}", r#"up{ns="a"}"#),
        (r#"up{job="x"}"#, r#"up{job="x",ns="a"}"#),
        (r#"up{job="x",}"#, r#"up{job="x",ns="a"}"#),
        ("a:b:c", r#"a:b:c{ns="a"}"#),
        ("up[5m]", r#"up{ns="a"}[5m]"#),
        ("rate(up[5m])", r#"rate(up{ns="a"}[5m])"#),
        ("up offset 5m", r#"up{ns="a"} offset 5m"#),
        ("up offset -1h30m", r#"up{ns="a"} offset -1h30m"#),
        ("up @ 1609746000", r#"up{ns="a"} @ 1609746000.000"#),
        ("up @ start() offset 1m", r#"up{ns="a"} @ start() offset 1m"#),
        ("rate(up[5m] @ end())", r#"rate(up{ns="a"}[5m] @ end())"#),
        ("max_over_time(up[1h:5m])", r#"max_over_time(up{ns="a"}[1h:5m])"#),
        ("max_over_time(up[1h:] offset 1d)", r#"max_over_time(up{ns="a"}[1h:] offset 1d)"#),
        (
            "max_over_time(rate(max_over_time(a[5m:1m])[10m:])[1h: 5m])",
            r#"max_over_time(rate(max_over_time(a{ns="a"}[5m:1m])[10m:])[1h:5m])"#,
        ),
        ("a + b", r#"a{ns="a"} + b{ns="a"}"#),
        ("a + on (x) group_left (y) b", r#"a{ns="a"} + on (x) group_left (y) b{ns="a"}"#),
        ("a / ignoring(x) group_right b", r#"a{ns="a"} / ignoring (x) group_right () b{ns="a"}"#),
        ("a + ignoring() b", r#"a{ns="a"} + b{ns="a"}"#),
        ("a == bool 1", r#"a{ns="a"} == bool 1"#),
        ("a and b or c unless d", r#"a{ns="a"} and b{ns="a"} or c{ns="a"} unless d{ns="a"}"#),
        ("a and on () b", r#"a{ns="a"} and on () b{ns="a"}"#),
        ("a atan2 b", r#"a{ns="a"} atan2 b{ns="a"}"#),
        ("a ^ b ^ c", r#"a{ns="a"} ^ b{ns="a"} ^ c{ns="a"}"#),
        ("(a - b) * -c", r#"(a{ns="a"} - b{ns="a"}) * -c{ns="a"}"#),
        ("-1 ^ a", r#"-1 ^ a{ns="a"}"#),
        ("sum(a)", r#"sum(a{ns="a"})"#),
        ("SUM(a)", r#"sum(a{ns="a"})"#),
        ("sum by (ns) (a)", r#"sum by (ns) (a{ns="a"})"#),
        ("sum(a) without (x, y)", r#"sum without (x, y) (a{ns="a"})"#),
        ("sum by () (a)", r#"sum(a{ns="a"})"#),
        ("topk(5, a)", r#"topk(5, a{ns="a"})"#),
        ("topk(scalar(secret), a)", r#"topk(scalar(secret{ns="a"}), a{ns="a"})"#),
        (r#"count_values("v", a)"#, r#"count_values("v", a{ns="a"})"#),
        ("quantile(scalar(b), a)", r#"quantile(scalar(b{ns="a"}), a{ns="a"})"#),
        ("absent(up)", r#"absent(up{ns="a"})"#),
        ("absent_over_time(up[5m])", r#"absent_over_time(up{ns="a"}[5m])"#),
        (
            r#"label_replace(up, "ns", "b", "job", "(.*)")"#,
            r#"label_replace(up{ns="a"}, "ns", "b", "job", "(.*)")"#,
        ),
        (
            "histogram_quantile(0.9, sum by (le) (rate(x_bucket[5m])))",
            r#"histogram_quantile(0.9, sum by (le) (rate(x_bucket{ns="a"}[5m])))"#,
        ),
        ("vector(scalar(up))", r#"vector(scalar(up{ns="a"}))"#),
        ("1 + 1", "1 + 1"),
        ("time() - 0x1F", "time() - 31"),
        ("1e3 + Inf", "1000 + Inf"),
        (r#""text""#, r#""text""#),
        ("NaN", "NaN"),
        // Selectors without a name, or with a strange one.
        (r#"{job="x"}"#, r#"{job="x",ns="a"}"#),
        (r#"{__name__="up"}"#, r#"{__name__="up",ns="a"}"#),
        (r#"{__name__=~".+"}"#, r#"{__name__=~".+",ns="a"}"#),
        (r#"{"a.b"}"#, r#"{__name__="a.b",ns="a"}"#),
        (r#"{"a.b", "c.d"="e"}"#, r#"{"c.d"="e",__name__="a.b",ns="a"}"#),
        ("offset", r#"offset{ns="a"}"#),
        ("sum by (by) (by)", r#"sum by (by) (by{ns="a"})"#),
        ("or{}", r#"or{ns="a"}"#),
        ("start", r#"start{ns="a"}"#),
        // The matchers of the caller stay, and those of the labels are added.
        (r#"up{ns="b"}"#, r#"up{ns="a",ns="b"}"#),
        (r#"up{ns=~".*"}"#, r#"up{ns="a",ns=~".*"}"#),
        (r#"up{ns!="a"}"#, r#"up{ns!="a",ns="a"}"#),
        (r#"up{ns!~"a|b"}"#, r#"up{ns!~"a|b",ns="a"}"#),
        (r#"up{ns="a"}"#, r#"up{ns="a"}"#),
        // Forms that a careless parser could read differently.
        ("up # {", r#"up{ns="a"}"#),
        ("# up{ns=\"a\"}\nsecret", r#"secret{ns="a"}"#),
        ("a # x\r+ b", r#"a{ns="a"} + b{ns="a"}"#),
        ("up{ # }\n}", r#"up{ns="a"}"#),
        (r#"up{job="}"} + b{x='{"'}"#, r#"up{job="}",ns="a"} + b{ns="a",x="{\""}"#),
        (r#"up{job="\"} or secret{x=\""}"#, r#"up{job="\"} or secret{x=\"",ns="a"}"#),
        ("up{job=`\"} or a{`}", r#"up{job="\"} or a{",ns="a"}"#),
        ("up{job='#no comment'}", r##"up{job="#no comment",ns="a"}"##),
        (r#"up{job="\x41\u00e9\n"}"#, r#"up{job="Aé\n",ns="a"}"#),
        ("\tup\n+\nup\n", r#"up{ns="a"} + up{ns="a"}"#),
        ("((((up))))", r#"((((up{ns="a"}))))"#),
    ] {
        assert_eq!(rewrite(query).unwrap(), rewritten, "{query}");
        assert!(rewrite(rewritten).is_ok(), "{rewritten}");
    }
}

/// A second matcher of the same label would remove it from the result.
#[test]
fn absent_series_keep_the_labels_that_the_caller_named() {
    for (query, rewritten) in [
        (r#"absent(up{ns="a"})"#, r#"absent(up{ns="a"})"#),
        (r#"absent_over_time(up{job="x",ns="a"}[5m])"#, r#"absent_over_time(up{job="x",ns="a"}[5m])"#),
        (r#"absent(up{ns="b"})"#, r#"label_replace(absent(up{ns="a",ns="b"}), "ns", "b", "ns", "")"#),
        (
            r#"1 + absent_over_time(up{ns="$b"}[5m])"#,
            r#"1 + label_replace(absent_over_time(up{ns="$b",ns="a"}[5m]), "ns", "$$b", "ns", "")"#,
        ),
        (r#"absent(up{ns=~"a"})"#, r#"absent(up{ns="a",ns=~"a"})"#),
        (r#"absent(sum(up{ns="b"}))"#, r#"absent(sum(up{ns="a",ns="b"}))"#),
        (r#"rate(up{ns="b"}[5m])"#, r#"rate(up{ns="a",ns="b"}[5m])"#),
    ] {
        assert_eq!(rewrite(query).unwrap(), rewritten, "{query}");
    }
    let labels = labels(&[("ns", &["a", "b"])]);
    assert_eq!(
        Rewriter::new(&labels).expression(r#"absent(up{ns="a"})"#).unwrap(),
        r#"label_replace(absent(up{ns="a",ns=~"a|b"}), "ns", "a", "ns", "")"#
    );
}

/// Prometheus reads them in the same way: see the test against it.
#[test]
fn spellings_of_go_are_read_as_prometheus_reads_them() {
    for (query, rewritten) in [
        (r"foo{path=~`/api/v\d+`}", r#"foo{ns="a",path=~"/api/v\\d+"}"#),
        (
            r#"label_replace(foo, "a", "$1", "b", `([^.]+)\..*`)"#,
            r#"label_replace(foo{ns="a"}, "a", "$1", "b", "([^.]+)\\..*")"#,
        ),
        (r"foo{a=`x\y`}", r#"foo{a="x\\y",ns="a"}"#),
        (r#"foo{a=~"\\Qa.b\\E"}"#, r#"foo{a=~"a\\.b",ns="a"}"#),
        (r#"foo{a=~"\\07"}"#, r#"foo{a=~"\\x07",ns="a"}"#),
        (r#"foo{a=~"\\p{^Greek}"}"#, r#"foo{a=~"\\P{Greek}",ns="a"}"#),
        ("1_000 + foo", r#"1000 + foo{ns="a"}"#),
        ("foo{a=`\"} or secret{b=\"`}", r#"foo{a="\"} or secret{b=\"",ns="a"}"#),
    ] {
        assert_eq!(rewrite(query).unwrap(), rewritten, "{query}");
    }
}

#[test]
fn several_labels_and_values_are_enforced() {
    let labels = labels(&[("ns", &["a.b", "c|d"]), ("cluster", &["x\"\\y"])]);
    let rewritten = Rewriter::new(&labels).expression("up").unwrap();
    assert_eq!(rewritten, r#"up{cluster="x\"\\y",ns=~"a\\.b|c\\|d"}"#);
}

#[test]
fn invalid_promql_is_a_bad_request() {
    for query in [
        "",
        " ",
        "# only a comment",
        "{}",
        "up{",
        "up}",
        "sum(",
        "up)",
        "{__name__=~\".*\"}",
        "{job=\"\"}",
        "up{x=\"a\"} y",
        "up{__name__=\"b\"}",
        "up[5m:5m:5m]",
        "up[1e300]",
        "up[5m: 1e300]",
        "up[1e+300]",
        "up offset inf",
        "up offset -NaN",
        "up[99999999999s]",
        "up[1h99999999999s]",
        "rate(up)",
        "unknown_function(up)",
        "WITH (x = up) x",
        "up smoothed",
        "up keep_metric_names",
        "rate(up[5m + 1m])",
        "up{job=\"a\nb\"}",
        "up{job=`\\``}",
        "up{job=\"\\q\"}",
        "up{job='\\x'}",
        "up{job=~\"(\"}",
        "up{job=~\"\\é\"}",
        "up\0",
        "up\u{a0}",
        "ｕｐ",
        "up == 1 ;",
        "$up",
    ] {
        assert_eq!(rewrite(query).map_err(|error| error.reason), Err(Reason::BadRequest), "{query:?}");
    }
}

#[test]
fn unenforceable_promql_is_refused() {
    for (query, why) in [
        (r#"{job="a" or job="b"}"#, "`or` between the matchers"),
        (r#"up{job="a" or job="b", x="y"}"#, "`or` between the matchers"),
        ("info(up)", "info()"),
        (r#"sum(info(up, {data="x"}))"#, "info()"),
        ("topk(scalar(info(up)), up)", "info()"),
        ("up @ -5", "before 1970"),
        ("up[0.0005]", "below a millisecond"),
        ("a + ignoring() group_left b", "empty `ignoring ()`"),
    ] {
        let error = rewrite(query).unwrap_err();
        assert_eq!(error.reason, Reason::NotEnforceable, "{query}");
        assert!(error.message.contains(why), "{query}: {error}");
    }
}

#[test]
fn costly_promql_is_refused_before_parsing() {
    let most = format!("up{}", " or up".repeat(MAX_OPERATIONS));
    assert!(rewrite(&most).is_ok());
    for deep in ["(", "-", "sum(", "[", "up^", "up or ", "up{x=\"'\"} unless "] {
        let error = rewrite(&deep.repeat(MAX_OPERATIONS + 1)).unwrap_err();
        assert!(error.message.contains("operators and brackets"), "{deep}: {error}");
    }

    let filled = |length| format!("up#{}", "x".repeat(length - 3));
    assert!(rewrite(&filled(complexity::MAX_BYTES)).is_ok());
    let error = rewrite(&filled(complexity::MAX_BYTES + 1)).unwrap_err();
    assert!(error.message.contains("bytes of PromQL"), "{error}");

    assert!(rewrite(r#"up{pod=~"web-[a-z0-9]{8,10}-[a-z0-9]{5}|\\d+"}"#).is_ok());
    for regex in [r"\\w{500}", r"(a{1000}){1000}", r"\\w{60}|\\w{60}", r"\x5cw{500}", r"(?x)a"] {
        let error = rewrite(&format!("up{{pod=~ # x\n\"{regex}\"}}")).unwrap_err();
        assert!(error.message.contains("too costly"), "{regex}: {error}");
    }

    let labels = team_a();
    let mut rewriter = Rewriter::new(&labels);
    assert!(rewriter.expression(&most).is_ok());
    assert!(rewriter.selector("up{}").is_ok(), "it costs nothing that is counted");
    assert!(rewriter.expression("(up)").is_err(), "the limits are those of the whole request");
}

#[test]
fn match_must_be_a_selector() {
    let labels = team_a();
    let selector = |text: &str| Rewriter::new(&labels).selector(text);
    assert_eq!(selector("up").unwrap(), r#"up{ns="a"}"#);
    assert_eq!(selector(r#"{__name__=~"job:.*"}"#).unwrap(), r#"{__name__=~"job:.*",ns="a"}"#);
    for text in ["up[5m]", "up offset 5m", "up @ 5", "(up)", "sum(up)", "a or b", "1", "\"up\"", ""] {
        assert!(selector(text).is_err(), "{text}");
    }
}

/// As the configuration has it by default.
const MAX_FORM_BYTES: usize = 1 << 20;

async fn ask(method: Method, path: &str, form: Option<&str>) -> Result<(String, String), QueryError> {
    let mut request = Request::new(Full::<Bytes>::from(form.unwrap_or_default().to_owned()));
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().unwrap();
    if form.is_some() {
        request.headers_mut().insert(CONTENT_TYPE, form::CONTENT_TYPE_FORM);
        request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("7"));
    }
    let request = enforce(&team_a(), request, MAX_FORM_BYTES).await?;
    let uri = request.uri().to_string();
    let length = request.headers().get(CONTENT_LENGTH).cloned();
    let body = request.into_body();
    assert_eq!(length, form.map(|_| HeaderValue::from(body.len())));
    Ok((uri, String::from_utf8(body.to_vec()).unwrap()))
}

/// `{ns="a"}`, encoded.
const ALL: &str = "%7Bns%3D%22a%22%7D";

#[tokio::test]
async fn parameters_of_url_and_form_are_rewritten() {
    let up = format!("up{ALL}");
    for path in ["/api/v1/query", "/api/v1/query_range", "/api/v1/query_exemplars"] {
        let (uri, _) = ask(Method::GET, &format!("{path}?query=up&time=1&x"), None).await.unwrap();
        assert_eq!(uri, format!("{path}?query={up}&time=1&x="));
        let (uri, _) = ask(Method::GET, &format!("{path}?query=up&q%75ery=%75p"), None).await.unwrap();
        assert_eq!(uri, format!("{path}?query={up}&query={up}"));
        let both = ask(Method::POST, &format!("{path}?query=up"), Some("step=1&query=up")).await.unwrap();
        assert_eq!(both, (format!("{path}?query={up}"), format!("step=1&query={up}")));
        let in_url = ask(Method::POST, &format!("{path}?query=up"), Some("")).await.unwrap();
        assert_eq!(in_url, (format!("{path}?query={up}"), String::new()));
    }
    for path in ["/api/v1/series", "/api/v1/labels", "/api/v1/label/job/values", "/federate"] {
        let (uri, _) =
            ask(Method::GET, &format!("{path}?match[]=up&match%5B%5D=up&start=1"), None).await.unwrap();
        assert_eq!(uri, format!("{path}?match%5B%5D={up}&match%5B%5D={up}&start=1"));
        let (uri, _) = ask(Method::GET, path, None).await.unwrap();
        assert_eq!(uri, format!("{path}?match%5B%5D={ALL}"));
    }
    let all = format!("match%5B%5D={ALL}");
    let posted = ask(Method::POST, "/api/v1/series?start=1", Some("end=2")).await.unwrap();
    assert_eq!(posted, ("/api/v1/series?start=1".to_owned(), format!("end=2&{all}")));
    let posted = ask(Method::POST, "/api/v1/labels?match[]=up", Some("")).await.unwrap();
    assert_eq!(posted, (format!("/api/v1/labels?match%5B%5D={up}"), String::new()));

    let neutral = ask(Method::POST, "/api/v1/format_query", Some("query=sum(up")).await.unwrap();
    assert_eq!(neutral.1, "query=sum%28up", "it is only written anew");
    let (uri, _) = ask(Method::GET, "/api/v1/status/buildinfo", None).await.unwrap();
    assert_eq!(uri, "/api/v1/status/buildinfo");
}

#[tokio::test]
async fn get_loses_its_body() {
    let mut request = Request::new(Full::<Bytes>::from("query=secret"));
    *request.uri_mut() = "/api/v1/query?query=up".parse().unwrap();
    request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("12"));
    request.headers_mut().insert(CONTENT_TYPE, form::CONTENT_TYPE_FORM);
    let request = enforce(&team_a(), request, MAX_FORM_BYTES).await.unwrap();
    assert!(request.headers().is_empty(), "{:?}", request.headers());
    assert!(request.into_body().is_empty());
}

#[tokio::test]
async fn other_endpoints_are_refused() {
    for path in [
        "/api/v1/metadata",
        "/api/v1/rules",
        "/api/v1/alerts",
        "/api/v1/targets",
        "/api/v1/targets/metadata",
        "/api/v1/scrape_pools",
        "/api/v1/alertmanagers",
        "/api/v1/status/config",
        "/api/v1/status/tsdb",
        "/api/v1/status/runtimeinfo",
        "/api/v1/read",
        "/api/v1/write",
        "/api/v1/search/metric_names",
        "/api/v1/notifications",
        "/api/v1/features",
        "/metrics",
        "/graph",
        "/",
        // Another spelling.
        "/api/v1/query/",
        "/api/v1//query",
        "//api/v1/query",
        "/api/v1/quer%79",
        "/api/v1/Query",
        "/api/v1/./query",
        "/x/../api/v1/query",
        "/api/v1/query;x",
        "/api/v1/label/a%2Fb/values",
        "/api/v1/label/a.b/values",
        "/api/v1/label//values",
        "/api/v1/label/a/b/values",
        "/api/v1/label/../values",
        "/api/v1/label/job/values/",
        "/federate/",
    ] {
        for (method, form) in [(Method::GET, None), (Method::POST, Some("query=up"))] {
            let error = ask(method.clone(), &format!("{path}?query=up"), form).await.unwrap_err();
            assert_eq!(error.reason, Reason::NotEnforceable, "{method} {path}");
        }
    }
    for method in [Method::PUT, Method::PATCH, Method::DELETE, Method::HEAD, Method::OPTIONS] {
        let error = ask(method.clone(), "/api/v1/query?query=up", None).await.unwrap_err();
        assert_eq!(error.reason, Reason::NotEnforceable, "{method}");
    }
    for path in ["/federate", "/api/v1/label/job/values", "/api/v1/status/buildinfo"] {
        assert!(ask(Method::POST, path, Some("")).await.is_err(), "{path} is only read with GET");
    }
}

#[tokio::test]
async fn parameters_invalid_in_go_are_refused() {
    for (url, form) in [
        ("query=up;query=secret", ""),
        ("query=up%", ""),
        ("query=%zz", ""),
        ("query=%ff", ""),
        ("match[]=up", ""),
        ("", ""),
        ("query", ""),
        ("query=up", "query=secret;x"),
        ("query=up", "a=%"),
        ("query=up", "query=sum("),
        ("query=sum(", "query=up"),
        ("query=up&query=sum(", "query=up"),
    ] {
        let error = ask(Method::POST, &format!("/api/v1/query?{url}"), Some(form)).await.unwrap_err();
        assert_eq!(error.reason, Reason::BadRequest, "{url} {form}");
    }
}

#[tokio::test]
async fn other_content_types_are_refused() {
    for (types, encoding) in [
        (&[][..], None),
        (&["application/json"], None),
        (&["multipart/form-data; boundary=x"], None),
        (&["application/x-www-form-urlencoded; charset=utf-7"], None),
        (&["application/x-www-form-urlencoded", "application/json"], None),
        (&["application/x-www-form-urlencoded"], Some("gzip")),
    ] {
        let mut request = Request::post("/api/v1/query?query=up");
        for media in types {
            request = request.header(CONTENT_TYPE, *media);
        }
        if let Some(encoding) = encoding {
            request = request.header(CONTENT_ENCODING, encoding);
        }
        let error =
            enforce(&team_a(), request.body(Full::<Bytes>::from("query=up")).unwrap(), MAX_FORM_BYTES)
                .await
                .unwrap_err();
        assert_eq!(error.reason, Reason::NotEnforceable, "{types:?} {encoding:?}");
    }
    let upper = Request::post("/api/v1/query").header(CONTENT_TYPE, "Application/X-WWW-Form-Urlencoded");
    assert!(
        enforce(&team_a(), upper.body(Full::<Bytes>::from("query=up")).unwrap(), MAX_FORM_BYTES)
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn large_form_is_refused() {
    let filled = |length| format!("query=up&x={}", "y".repeat(length - "query=up&x=".len()));
    assert!(ask(Method::POST, "/api/v1/query", Some(&filled(MAX_FORM_BYTES))).await.is_ok());
    let error = ask(Method::POST, "/api/v1/query", Some(&filled(MAX_FORM_BYTES + 1))).await.unwrap_err();
    assert_eq!(error.reason, Reason::BodyTooLarge);
    assert_eq!(error.reason.status(), StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn long_url_is_refused() {
    let rest = MAX_URL_BYTES - format!("/api/v1/query?query=up{ALL}&x=").len();
    let path = |length| format!("/api/v1/query?query=up&x={}", "y".repeat(length));
    assert_eq!(ask(Method::GET, &path(rest), None).await.unwrap().0.len(), MAX_URL_BYTES);
    let error = ask(Method::GET, &path(rest + 1), None).await.unwrap_err();
    assert_eq!(error.reason, Reason::HeadTooLarge);
    assert!(error.message.contains("POST"), "{error}");
}
