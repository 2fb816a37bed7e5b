//! The users of a kubeconfig.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rcgen::{CertificateParams, KeyPair};

use super::{Fixture, SERVER, authorization, error};

#[tokio::test]
async fn tokens_and_passwords_are_sent() {
    let fixture = Fixture::new();
    fixture.write("token", "from a file\n");
    for (user, expected, described) in [
        ("", None, "no credentials"),
        ("token: s3cret", Some("Bearer s3cret"), "a fixed token"),
        ("token: ''", None, "no credentials"),
        ("tokenFile: token", Some("Bearer from a file"), "the token in DIR/token"),
        ("token: old, tokenFile: token", Some("Bearer from a file"), "the token in DIR/token"),
        ("token: old, tokenFile: none", Some("Bearer old"), "the token in DIR/none"),
        ("token: s3cret, exec: {command: x}", Some("Bearer s3cret"), "a fixed token"),
        ("username: me, password: 's3:cret'", Some("Basic bWU6czM6Y3JldA=="), "a user name and password"),
        ("username: me, exec: {command: x}", Some("Basic bWU6"), "a user name and password"),
    ] {
        let cluster = fixture.with_user(user).unwrap();
        assert_eq!(authorization(&cluster).await.as_deref(), expected, "{user}");
        let shown = cluster.to_string().replace(fixture.directory.path().to_str().unwrap(), "DIR");
        assert!(shown.ends_with(&format!(", with {described}")), "{shown}");
        assert!(!format!("{shown} {cluster:?}").contains("cret"), "{shown}");
    }
}

#[tokio::test]
async fn client_certificates_are_used() {
    let fixture = Fixture::new();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new([]).unwrap().self_signed(&key).unwrap().pem();
    fixture.write("me.crt", &certificate);
    fixture.write("me.key", &key.serialize_pem());
    let encoded = |pem: &str| BASE64_STANDARD.encode(pem);
    let inline = format!(
        "client-certificate-data: {}, client-key-data: '{}'",
        encoded(&certificate),
        encoded(&key.serialize_pem())
    );

    for user in ["client-certificate: me.crt, client-key: me.key", &inline] {
        let cluster = fixture.with_user(user).unwrap();
        assert_eq!(authorization(&cluster).await, None);
        assert!(cluster.tls().config().await.unwrap().client_auth_cert_resolver.has_certs());
        assert!(cluster.to_string().ends_with(", with a client certificate"), "{cluster}");
    }
    let both = fixture.with_user(&format!("token: t, {inline}")).unwrap();
    assert_eq!(authorization(&both).await.as_deref(), Some("Bearer t"));
    assert!(both.tls().config().await.unwrap().client_auth_cert_resolver.has_certs());
}

#[test]
fn impersonation_becomes_headers() {
    let fixture = Fixture::new();
    let user = "token: t, as: 'system:serviceaccount:ci:runner', as-uid: '7', as-groups: [dev, 'ops team'], \
                as-user-extra: {Example.org/Scope%: [a, b]}";
    let cluster = fixture.with_user(user).unwrap();
    let impersonation = cluster.impersonation().unwrap();
    let headers: Vec<_> =
        impersonation.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
    assert_eq!(
        headers,
        [
            "impersonate-user: system:serviceaccount:ci:runner",
            "impersonate-uid: 7",
            "impersonate-group: dev",
            "impersonate-group: ops team",
            "impersonate-extra-example.org%2fscope%25: a",
            "impersonate-extra-example.org%2fscope%25: b",
        ]
    );
    assert!(cluster.to_string().ends_with(", as system:serviceaccount:ci:runner"), "{cluster}");
    assert!(fixture.with_user("token: t").unwrap().impersonation().is_none());
}

/// As in kubectl, impersonation does not require TLS, and credentials do.
#[tokio::test]
async fn credentials_are_not_sent_over_plain_http() {
    let fixture = Fixture::new();
    let cluster = fixture.with("server: 'http://127.0.0.1:8001'", "token: s3cret, as: me").unwrap();
    assert_eq!(authorization(&cluster).await, None);
    assert_eq!(cluster.impersonation().unwrap()["impersonate-user"], "me");
}

#[test]
fn invalid_user_is_an_error_with_its_line() {
    let fixture = Fixture::new();
    for (user, expected) in [
        (
            "auth-provider: {name: gcp, config: {access-token: s3cret}}",
            "auth-provider was removed in Kubernetes 1.26; use an exec plugin",
        ),
        ("token: s3cret, username: me", "token and username/password exclude each other; remove one"),
        ("token: \"s3cret\\0\"", "token cannot be sent in a header"),
        ("client-certificate: me.crt", "client-certificate without client-key"),
        ("client-key-data: czNjcmV0", "client-key without client-certificate"),
        ("client-certificate: a, client-key-data: s3cret", "client-key-data is not valid base64"),
        ("as-groups: [dev]", "as-uid, as-groups and as-user-extra need as, the user they belong to"),
        (
            "as: \"a\\nb\"",
            "as: username travels in a header: it must not be empty, begin or end with a blank, or hold control characters",
        ),
        ("exec: {}", "exec has no command"),
        (
            "exec: {command: x, apiVersion: client.authentication.k8s.io/v1alpha1}",
            "exec has apiVersion \"client.authentication.k8s.io/v1alpha1\"; supported are \
             client.authentication.k8s.io/v1 and client.authentication.k8s.io/v1beta1; update the plugin, or its \
             entry here",
        ),
        (
            "exec: {command: x, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Always}",
            "exec has interactiveMode Always, but agentk has no terminal",
        ),
    ] {
        let text = error(&fixture, fixture.with(SERVER, user));
        assert_eq!(text, format!("DIR/config:12: user \"u\": {expected}"));
    }
}
