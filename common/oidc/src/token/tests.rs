use kas_testing::issuer::{IssuerKey, TestIssuer};
use serde_json::json;

use super::*;

const NOW: u64 = 1_800_000_000;

fn policy() -> TokenPolicy {
    TokenPolicy {
        name: "test".into(),
        issuer: TestIssuer::URL.into(),
        audiences: vec!["kas".into(), "kas-staging".into()],
        algorithms: vec![Algorithm::RS256, Algorithm::ES256],
        leeway: 30,
        stream_grace: None,
        username: ClaimMapping::new("sub".into(), "test:".into()),
        groups: Some(ClaimMapping::new("groups".into(), "test:".into())),
    }
}

fn claims(additional: Value) -> Value {
    let mut claims = json!({"iss": TestIssuer::URL, "aud": "kas", "sub": "alice", "exp": NOW + 600});
    for (name, value) in additional.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims
}

fn key_set(keys: &[&IssuerKey]) -> JwkSet {
    let keys: Vec<_> = keys.iter().map(|key| key.jwk()).collect();
    JwkSet::parse(json!({"keys": keys}).to_string().as_bytes()).unwrap()
}

fn verify(text: &str, policy: &TokenPolicy, keys: &JwkSet) -> Result<VerifiedToken, TokenError> {
    UnverifiedToken::parse(text)?.expect("it is a JWT").verify(policy, keys, NOW)
}

/// Verifies a token with these additional claims, and returns the class of the error.
fn class(additional: Value) -> &'static str {
    let key = IssuerKey::ec("a");
    verify(&key.token(&claims(additional)), &policy(), &key_set(&[&key]))
        .map_or_else(TokenError::class, |_| "accepted")
}

#[test]
fn token_of_each_key_type_is_accepted() {
    let (rsa, ec) = (IssuerKey::rsa("r"), IssuerKey::ec("e"));
    let keys = key_set(&[&rsa, &ec]);
    for key in [&rsa, &ec] {
        let text = key.token(&claims(json!({"groups": ["dev", "ops"]})));
        let token = verify(&text, &policy(), &keys).unwrap();
        assert_eq!((&*token.issuer, &*token.username, token.expires), ("test", "test:alice", NOW + 630));
        let groups: Vec<_> = token.impersonation.get_all("impersonate-group").iter().collect();
        assert_eq!(groups, ["test:dev", "test:ops"]);
    }
}

#[test]
fn times_are_checked_with_the_leeway() {
    for (additional, expected) in [
        (json!({"exp": NOW - 29}), "accepted"),
        (json!({"exp": NOW - 30}), "expired"),
        (json!({"exp": NOW as f64 + 0.5}), "accepted"),
        (json!({"exp": 0}), "expired"),
        (json!({"exp": -1}), "malformed"),
        (json!({"exp": "2030-01-01"}), "malformed"),
        (json!({"exp": null}), "malformed"),
        (json!({"nbf": NOW + 30}), "accepted"),
        (json!({"nbf": NOW + 31}), "not-yet-valid"),
        (json!({"nbf": "soon"}), "malformed"),
        (json!({"iat": NOW + 9999}), "accepted"),
    ] {
        assert_eq!(class(additional.clone()), expected, "{additional}");
    }
    let key = IssuerKey::ec("a");
    let mut endless = claims(json!({}));
    endless.as_object_mut().unwrap().remove("exp");
    let error = verify(&key.token(&endless), &policy(), &key_set(&[&key])).unwrap_err();
    assert_eq!(error.to_string(), "it never expires: exp is missing");
}

#[test]
fn streams_end_after_the_leeway_and_the_grace() {
    let key = IssuerKey::ec("a");
    let streams_end = |grace: Option<u64>| {
        let policy = TokenPolicy { stream_grace: grace.map(Duration::from_secs), ..policy() };
        let token = verify(&key.token(&claims(json!({}))), &policy, &key_set(&[&key])).unwrap();
        token.streams_end.map(|end| end.duration_since(UNIX_EPOCH).unwrap().as_secs())
    };
    assert_eq!(streams_end(Some(3600)), Some(NOW + 600 + 30 + 3600));
    assert_eq!(streams_end(Some(0)), Some(NOW + 600 + 30));
    assert_eq!(streams_end(None), None);
    assert_eq!(streams_end(Some(u64::MAX)), None, "a time that no clock reaches");
}

#[test]
fn audience_and_issuer_must_be_expected_ones() {
    for (additional, expected) in [
        (json!({"aud": ["other", "kas-staging"]}), "accepted"),
        (json!({"aud": "KAS"}), "wrong-audience"),
        (json!({"aud": []}), "wrong-audience"),
        (json!({"aud": ["kas", 7]}), "wrong-audience"),
        (json!({"aud": null}), "wrong-audience"),
        (json!({"iss": "https://issuer.example.com/"}), "unknown-issuer"),
        (json!({"iss": [TestIssuer::URL]}), "unknown-issuer"),
    ] {
        assert_eq!(class(additional.clone()), expected, "{additional}");
    }
}

#[test]
fn user_must_fit_into_a_header_and_not_be_of_kubernetes() {
    let key = IssuerKey::ec("a");
    let keys = key_set(&[&key]);
    let mut email = policy();
    email.username.claim = "email".into();
    let mut plain = policy();
    plain.username.prefix.clear();
    plain.groups.as_mut().unwrap().prefix.clear();
    for (policy, additional, expected) in [
        (&policy(), json!({"sub": ""}), "username"),
        (&policy(), json!({"sub": 7}), "username"),
        (&policy(), json!({"sub": "a\nImpersonate-Group: system:masters"}), "username"),
        (&policy(), json!({"sub": "system:admin"}), "accepted"),
        (&plain, json!({"sub": "system:admin"}), "username"),
        (&plain, json!({"groups": ["dev", "system:masters"]}), "username"),
        (&plain, json!({"groups": ["dev", " system:masters"]}), "username"),
        (&plain, json!({"groups": ["\tsystem:masters"]}), "username"),
        (&plain, json!({"groups": ["dev", ""]}), "username"),
        (&plain, json!({"sub": " system:admin"}), "username"),
        (&plain, json!({"groups": ["gitlab:project_role:7:maintainer"]}), "username"),
        (&policy(), json!({"sub": "bob "}), "username"),
        (&policy(), json!({"sub": " bob"}), "username"),
        (&policy(), json!({"sub": "bob\u{a0}"}), "username"),
        (&policy(), json!({"sub": "bob\tsmith"}), "username"),
        (&policy(), json!({"groups": ["dev "]}), "username"),
        (&policy(), json!({"sub": "Bob Smith", "groups": ["Site Reliability"]}), "accepted"),
        (&policy(), json!({"groups": "dev"}), "accepted"),
        (&policy(), json!({"groups": {"a": 1}}), "username"),
        (&policy(), json!({"groups": ["a", 1]}), "username"),
        (&email, json!({"email": "a@b"}), "accepted"),
        (&email, json!({"email": "a@b", "email_verified": true}), "accepted"),
        (&email, json!({"email": "a@b", "email_verified": false}), "username"),
        (&email, json!({"email": "a@b", "email_verified": "true"}), "username"),
        (&email, json!({}), "username"),
    ] {
        let text = key.token(&claims(additional.clone()));
        let class = verify(&text, policy, &keys).map_or_else(TokenError::class, |_| "accepted");
        assert_eq!(class, expected, "{additional}");
    }
}

#[test]
fn signature_is_checked_with_the_algorithm_of_the_key() {
    let (rsa, ec, stranger) = (IssuerKey::rsa("r"), IssuerKey::ec("e"), IssuerKey::ec("e"));
    let keys = key_set(&[&rsa, &ec]);
    let claims = claims(json!({}));
    let header = |alg: &str, kid: &str| json!({"alg": alg, "kid": kid});
    let good = ec.token(&claims);
    let unsigned = |alg: &str| {
        let text = ec.sign(&header(alg, "e"), &claims);
        format!("{}.", text.rsplit_once('.').unwrap().0)
    };
    let (message, signature) = good.rsplit_once('.').unwrap();
    let other_signature = format!("{message}.{}", signature.chars().rev().collect::<String>());
    let hmac = kas_testing::internal_api::jwt(rsa.public_bytes(), &header("HS256", "r"), &claims);
    let pem = kas_testing::internal_api::jwt(b"-----BEGIN PUBLIC KEY-----", &header("HS256", "r"), &claims);
    for (text, expected) in [
        (unsigned("none"), "algorithm"),
        (unsigned("None"), "algorithm"),
        (unsigned(""), "algorithm"),
        (unsigned("ES256"), "signature"),
        (hmac, "algorithm"),
        (pem, "algorithm"),
        (ec.sign(&header("RS256", "e"), &claims), "unknown-key"),
        (ec.sign(&header("RS256", "r"), &claims), "signature"),
        (ec.sign(&header("ES384", "e"), &claims), "algorithm"),
        (ec.sign(&header("es256", "e"), &claims), "algorithm"),
        (ec.sign(&header("ES256", "../../keys/e"), &claims), "unknown-key"),
        (ec.sign(&json!({"alg": "ES256", "kid": "e", "crit": ["b64"], "b64": false}), &claims), "malformed"),
        (stranger.token(&claims), "signature"),
        (other_signature, "signature"),
        (good.replacen("ey", "eyJ", 1), "signature"),
    ] {
        let parsed = UnverifiedToken::parse(&text).unwrap();
        let class = parsed
            .map(|token| token.verify(&policy(), &keys, NOW).map_or_else(TokenError::class, |_| "accepted"));
        assert!(class.is_none_or(|class| class == expected), "{text}: {class:?} instead of {expected}");
    }
    assert!(verify(&good, &policy(), &keys).is_ok());
}

#[test]
fn token_without_kid_is_verified_with_each_key() {
    let (a, b) = (IssuerKey::ec("a"), IssuerKey::ec("b"));
    let text = b.sign(&json!({"alg": "ES256"}), &claims(json!({})));
    assert!(verify(&text, &policy(), &key_set(&[&a, &b])).is_ok());
    assert_eq!(verify(&text, &policy(), &key_set(&[&a])).unwrap_err(), TokenError::Signature);
}

#[test]
fn error_about_claims_needs_a_valid_signature() {
    let (key, stranger) = (IssuerKey::ec("a"), IssuerKey::ec("a"));
    let expired = stranger.token(&claims(json!({"exp": 1, "aud": "other"})));
    assert_eq!(verify(&expired, &policy(), &key_set(&[&key])).unwrap_err(), TokenError::Signature);
}

#[test]
fn other_texts_are_no_tokens() {
    let key = IssuerKey::ec("a");
    let good = key.token(&claims(json!({})));
    let huge = key.token(&claims(json!({"x": "y".repeat(20_000)})));
    for text in
        ["", "secret", "ey", "ey..", "ey.ey.ey", "a.b.c", &good[1..], &format!("{good}.x"), "kas-caller-x"]
    {
        assert!(UnverifiedToken::parse(text).unwrap().is_none(), "{text}");
    }
    assert_eq!(UnverifiedToken::parse(&huge).unwrap_err(), TokenError::TooLarge);
    let nested = format!(
        "{}.{}.x",
        URL_SAFE_NO_PAD.encode("{\"alg\":\"ES256\"}"),
        URL_SAFE_NO_PAD.encode("[".repeat(9000))
    );
    assert!(UnverifiedToken::parse(&nested).unwrap().is_none());
}

#[test]
fn token_has_no_name_of_another_issuer() {
    let key = IssuerKey::ec("a");
    let with = |users: &str, groups: &str| TokenPolicy {
        username: ClaimMapping::new("sub".into(), users.into()),
        groups: Some(ClaimMapping::new("groups".into(), groups.into())),
        ..policy()
    };
    let class = |policy: &TokenPolicy, sub: &str, group: &str| {
        let claims = claims(json!({"sub": sub, "groups": [group]}));
        verify(&key.token(&claims), policy, &key_set(&[&key])).map_or_else(TokenError::class, |_| "accepted")
    };
    let (mut open, mut corp, mut admins) = (with("", ""), with("corp:", "corp:"), with("corp:admins:", "a:"));
    open.reserve_names_of(&corp);
    open.reserve_names_of(&admins);
    corp.reserve_names_of(&open);
    corp.reserve_names_of(&admins);
    admins.reserve_names_of(&corp);
    let gitlab = with("gitlab:", "gitlab:");
    for (policy, sub, group, expected) in [
        (&gitlab, "project_path:shop/web", "shop/web", "accepted"),
        (&gitlab, "7", "user", "username"),
        (&gitlab, "7", "ci_job", "username"),
        (&gitlab, "user:bob", "shop/web", "username"),
        (&gitlab, "7", "users", "accepted"),
        (&open, "bob", "dev", "accepted"),
        (&open, "corp:bob", "dev", "username"),
        (&open, "bob", "corp:dev", "username"),
        (&open, "a:bob", "dev", "accepted"),
        (&open, "bob", "a:dev", "username"),
        (&corp, "bob", "dev", "accepted"),
        (&corp, "admins:bob", "dev", "username"),
        (&corp, "bob", "a:dev", "accepted"),
        (&admins, "bob", "dev", "accepted"),
    ] {
        assert_eq!(class(policy, sub, group), expected, "{sub} {group}");
    }
}
