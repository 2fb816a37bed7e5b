use std::path::Path;

use http::HeaderMap;
use proto::AgentId;
use serde_json::json;

use super::*;
use crate::identity::Identity;

fn parse(callers: &str) -> Result<Identity, String> {
    let text = format!("agents: [{{id: 1, name: prod, tokens: []}}]\ncallers:\n{callers}\n");
    Identity::parse(Path::new("id.yaml"), &text).map_err(|error| error.to_string())
}

fn entry(name: &str, claims: &str) -> String {
    format!(
        "- {{name: {name}, agents: [prod], services: [kubernetes], oidc: {{issuer: test, claims: {{{claims}}}}}}}\n"
    )
}

fn token(claims: Value) -> VerifiedClaims {
    VerifiedClaims {
        issuer: "test".into(),
        username: "test:alice".into(),
        impersonation: HeaderMap::new(),
        streams_end: None,
        job: None,
        claims: claims.as_object().unwrap().clone(),
    }
}

fn name(identity: &Identity, claims: Value) -> Option<String> {
    identity.oidc_grant(&token(claims)).map(|grant| grant.caller.name().to_owned())
}

#[test]
fn claims_match_exactly_and_all_of_them() {
    for (rule, claims, expected) in [
        ("a: b", json!({"a": "b"}), true),
        ("a: b", json!({"a": "B"}), false),
        ("a: b", json!({"a": "bb"}), false),
        ("a: b", json!({"a": ["x", "b"]}), true),
        ("a: b", json!({"a": ["bx", ["b"]]}), false),
        ("a: b", json!({"a": {"b": 1}}), false),
        ("a: b", json!({"a": null}), false),
        ("a: b", json!({}), false),
        ("a: b, c: d", json!({"a": "b"}), false),
        ("a: b, c: d", json!({"a": "b", "c": "d", "e": "f"}), true),
        ("a: [b, c]", json!({"a": "c"}), true),
        ("a: [b, c]", json!({"a": ["d", "b"]}), true),
        ("a: [b, c]", json!({"a": "b, c"}), false),
        ("a: 'true'", json!({"a": "true"}), true),
        ("a: true", json!({"a": "true"}), true),
        ("a: 'true'", json!({"a": true}), true),
        ("a: 7", json!({"a": 7}), true),
        ("a: 7", json!({"a": "7"}), true),
        ("a: 7", json!({"a": 7.5}), false),
        ("a: 'null'", json!({"a": null}), false),
        ("a: '*'", json!({"a": "b"}), false),
    ] {
        let identity = parse(&entry("x", rule)).unwrap();
        assert_eq!(name(&identity, claims.clone()).is_some(), expected, "{rule} {claims}");
    }
}

#[test]
fn first_matching_entry_of_the_issuer_decides() {
    let callers = entry("both", "a: b, c: d") + &entry("one", "a: b");
    let identity = parse(&callers).unwrap();
    assert_eq!(name(&identity, json!({"a": "b", "c": "d"})).as_deref(), Some("both"));
    assert_eq!(name(&identity, json!({"a": "b"})).as_deref(), Some("one"));
    assert_eq!(name(&identity, json!({"c": "d"})), None);
    let other = VerifiedClaims { issuer: "other".into(), ..token(json!({"a": "b"})) };
    assert!(identity.oidc_grant(&other).is_none(), "the claims are those of another issuer");
    assert!(identity.check_issuers(Path::new("id.yaml"), &["test".into()]).is_ok());
    let error = identity.check_issuers(Path::new("id.yaml"), &["dex".into()]).unwrap_err().to_string();
    assert!(
        error.starts_with("id.yaml:3:71: callers[0].oidc.issuer: there is no issuer \"test\""),
        "{error}"
    );
}

#[test]
fn user_of_the_token_is_impersonated_if_the_entry_wants_it() {
    let callers =
        entry("user", "a: b").replace("oidc:", "access_as: {user: {}}, oidc:") + &entry("agent", "c: d");
    let identity = parse(&callers).unwrap();
    let user = identity.oidc_grant(&token(json!({"a": "b"}))).unwrap();
    assert!(
        matches!(&user.caller.access_as, AccessAs::Impersonate { username, .. } if username == "test:alice")
    );
    let agent = identity.oidc_grant(&token(json!({"c": "d"}))).unwrap();
    assert_eq!(agent.caller.access_as, AccessAs::Agent);
    assert_eq!(agent.caller.user.as_deref(), Some("test:alice"));
    assert!(agent.caller.may_use(AgentId(1)) && !agent.caller.may_use(AgentId(2)));
}

#[test]
fn limit_of_requests_is_per_user_and_survives_a_new_version() {
    let identity = parse(&entry("x", "a: b")).unwrap();
    let of = |identity: &Identity, user: &str| {
        let token = VerifiedClaims { username: user.to_owned(), ..token(json!({"a": "b"})) };
        identity.oidc_grant(&token).unwrap().in_flight.clone()
    };
    let alice = of(&identity, "alice");
    assert!(Arc::ptr_eq(&alice, &of(&identity, "alice")) && !Arc::ptr_eq(&alice, &of(&identity, "bob")));
    let mut next = parse(&entry("x", "a: c, a2: b").replace("a: c, a2: b", "a: b, c: d")).unwrap();
    inherit(&mut next.oidc_rules, &identity.oidc_rules);
    assert!(Arc::ptr_eq(&alice, &next.oidc_rules[0].in_flight.of("alice")));
    for user in 0..1000 {
        of(&identity, &user.to_string());
    }
    assert!(identity.oidc_rules[0].in_flight.0.lock().len() < 10, "users without requests are forgotten");
}

/// The names of the entries whose streams are cut when a file with the entries `after` replaces one with the entries `before`.
fn cut(before: &[&str], after: &[&str]) -> Vec<String> {
    let version = |names: &[&str]| {
        let entries = names.iter().map(|name| entry(&name.replace('\'', ""), &format!("a: \"{name}\"")));
        parse(&entries.collect::<String>()).unwrap().oidc_rules
    };
    let (former, mut next) = (version(before), version(after));
    inherit(&mut next, &former);
    assert!(next.iter().all(|rule| !rule.revoked.is_cancelled()));
    former.iter().filter(|rule| rule.revoked.is_cancelled()).map(|rule| rule.rights.name.clone()).collect()
}

#[test]
fn streams_end_if_their_entry_changes_or_another_one_comes_first() {
    assert!(cut(&["a", "b", "c"], &["a", "b", "c"]).is_empty());
    assert!(cut(&["a", "b"], &["a", "b", "c"]).is_empty(), "an entry at the end matches only other tokens");
    assert_eq!(cut(&["a", "b", "c"], &["a", "c"]), ["b"]);
    assert_eq!(cut(&["a", "b", "c"], &["a", "b'", "c"]), ["b", "c"], "the new entry may match tokens of c");
    assert_eq!(cut(&["a", "b"], &["c", "a", "b"]), ["a", "b"]);
    assert_eq!(cut(&["a", "b", "c"], &["a", "c", "b"]), ["b"]);
    assert_eq!(cut(&["a", "b"], &[]), ["a", "b"]);
}

#[test]
fn invalid_entry_is_refused_with_its_position() {
    let good = entry("x", "a: b");
    for (text, expected) in [
        (good.replace("{a: b}", "{}"), "callers[0].oidc.claims: at least one claim"),
        (good.replace("a: b", "a: []"), "callers[0].oidc.claims: at least one claim"),
        (good.replace("a: b", "a: {b: c}"), "a text, a boolean or a number"),
        (good.replace("issuer: test, ", ""), "issuer"),
        (good.replace("claims", "claim"), "unknown field `claim`"),
        (
            good.replace("oidc: {issuer: test, claims: {a: b}}", "prometheus: {labels: {a: [b]}}"),
            "a caller needs tokens, oidc or both",
        ),
        (
            good.replace("agents:", "access_as: {user: {}}, tokens: [], agents:"),
            "id.yaml:3:24: callers[0].access_as.user: only an OIDC token has a user",
        ),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.contains(expected), "{text}\n gave {error}");
    }
}
