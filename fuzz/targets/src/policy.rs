//! agentk's policy: any file, any request.
//!
//! Input: the policy, a line `...`, the method, the path with its query, and one header per line.
//!
//! * Parsing and evaluation end quickly and never panic.
//! * A request is allowed only by a rule that allows it. A request that no rule matches is denied.
//! * A request that is allowed while no labels of namespaces are known is allowed with any labels.
//! * Headers unrelated to the actor and parameters unrelated to the resource do not change the verdict.
//! * Another percent-encoding of the same path has the same verdict or is unclear.
//! * A `Connection` header that would remove the actor's headers is denied by every policy.

use std::path::Path;

use agentk_policy::{Action, DecisionSource, NamespaceLabels, Policy, PolicyDecision, describe};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, header::CONNECTION};

use crate::input::headers;

/// Checks one input.
pub fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let Some((file, rest)) = text.split_once("\n...\n") else { return };
    let Ok(policy) = Policy::parse(Path::new("policy.yaml"), file) else { return };
    let mut lines = rest.splitn(3, '\n');
    let (Some(method), Some(path)) = (lines.next(), lines.next()) else { return };
    let (Ok(method), Ok(uri)) = (Method::from_bytes(method.as_bytes()), path.parse::<Uri>()) else { return };
    let headers = headers(lines.next().unwrap_or_default().as_bytes());

    for service in ["kubernetes", "prometheus", "prometheus.other"] {
        let judge_by = |uri: &Uri, headers: &HeaderMap, labels: &NamespaceLabels| {
            let mut request = Request::new(());
            *request.method_mut() = method.clone();
            *request.uri_mut() = uri.clone();
            *request.headers_mut() = headers.clone();
            (policy.evaluate(service, &request, labels), describe(service, &request))
        };
        let judge = |uri: &Uri, headers: &HeaderMap| judge_by(uri, headers, &NamespaceLabels::default());
        let judged = judge(&uri, &headers);
        let verdict = judged.0;
        assert!(!verdict.allowed || judge_by(&uri, &headers, &labels()).0.allowed, "{verdict:?}");
        assert!(!policy.rule_name(verdict.source).is_empty());
        match verdict.source {
            DecisionSource::Rule(number) => {
                assert_eq!(verdict.allowed, policy.rules()[number].action() == Action::Allow);
            }
            DecisionSource::Default | DecisionSource::Unclear(_) => assert!(!verdict.allowed, "{verdict:?}"),
        }

        let mut more = headers.clone();
        for (name, value) in
            [("accept", "*/*"), ("user-agent", "kubectl"), ("x-remote-user", "root"), ("te", "a")]
        {
            more.append(name, HeaderValue::from_static(value));
        }
        assert_eq!(judge(&uri, &more), judged);
        if let Some(longer) = with_parameter(&uri) {
            assert_eq!(judge(&longer, &headers), judged, "{longer}");
        }
        if service != "kubernetes" {
            continue;
        }

        for other in encodings(&uri) {
            let encoded = judge(&other, &headers).0;
            let same = (encoded.allowed, encoded.source) == (verdict.allowed, verdict.source);
            assert!(same || is_unclear(&encoded), "{uri} {verdict:?}, but {other} {encoded:?}");
        }
        more.append(CONNECTION, HeaderValue::from_static("close, Impersonate-User"));
        assert!(is_unclear(&judge(&uri, &more).0));
    }
}

fn labels() -> NamespaceLabels {
    let mut labels = NamespaceLabels::empty(["team", "tier", "example.com/open"].map(str::to_owned).into());
    labels.set("a", [("team".to_owned(), "shop".to_owned())].into());
    labels.set("b", [].into());
    labels
}

fn is_unclear(verdict: &PolicyDecision) -> bool {
    matches!(verdict.source, DecisionSource::Unclear(_))
}

/// Returns the URI with an unrelated parameter before and after all others.
fn with_parameter(uri: &Uri) -> Option<Uri> {
    let query = uri.query()?;
    format!("{}?pretty=1&{query}&limit=5", uri.path()).parse().ok()
}

/// Returns URIs with the same path in which one letter or digit is percent-encoded.
fn encodings(uri: &Uri) -> impl Iterator<Item = Uri> {
    let path = uri.path();
    let plain = |at: &usize| {
        let escaped = path.as_bytes()[..*at].iter().rev().take(2).any(|byte| *byte == b'%');
        path.as_bytes()[*at].is_ascii_alphanumeric() && !escaped
    };
    (0..path.len()).filter(plain).step_by(3).filter_map(move |at| {
        let (before, after) = (&path[..at], &path[at + 1..]);
        let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        format!("{before}%{:02X}{after}{query}", path.as_bytes()[at]).parse().ok()
    })
}
