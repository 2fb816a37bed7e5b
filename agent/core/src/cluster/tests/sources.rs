//! Tests of the precedence of configurations, and of merged files.

use std::fs;

use rcgen::{CertificateParams, KeyPair};

use super::{Fixture, SERVER, authorization, error, kubeconfig};

fn named(server: &str) -> String {
    kubeconfig(&format!("server: 'http://{server}'"), "")
}

fn service_account(fixture: &mut Fixture) {
    let key = KeyPair::generate().unwrap();
    let ca = CertificateParams::new([]).unwrap().self_signed(&key).unwrap().pem();
    fixture.write("service-account/ca.crt", &ca);
    fixture.write("service-account/token", "mounted\n");
    fixture.set("KUBERNETES_SERVICE_HOST", "fd00::1");
    fixture.set("KUBERNETES_SERVICE_PORT", "6443");
}

#[test]
fn sources_have_the_precedence_of_kubectl() {
    let mut fixture = Fixture::new();
    fixture.write("home/.kube/config", &named("home"));
    let host = |fixture: &Fixture, kubeconfig: Option<&str>| {
        let path = kubeconfig.map(|name| fixture.path(name));
        fixture.load(path.as_deref(), None).unwrap().url().host().to_owned()
    };
    assert_eq!(host(&fixture, None), "home");

    service_account(&mut fixture);
    assert_eq!(host(&fixture, None), "fd00::1");

    let variable = fixture.write("variable", &named("variable"));
    fixture.set("KUBECONFIG", variable);
    assert_eq!(host(&fixture, None), "variable");

    fixture.write("explicit", &named("explicit"));
    assert_eq!(host(&fixture, Some("explicit")), "explicit");

    fixture.set("KUBECONFIG", "");
    assert_eq!(host(&fixture, None), "fd00::1", "an empty variable is treated as not set");
}

#[test]
fn missing_configuration_lists_all_sources() {
    let mut fixture = Fixture::new();
    assert_eq!(
        error(&fixture, fixture.load(None, None)),
        "no Kubernetes API is configured. Tried: --kubeconfig (not given), KUBECONFIG (not set), this pod's service \
         account (KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set), DIR/home/.kube/config (does not \
         exist)"
    );
    fixture.variables.remove("HOME");
    assert!(error(&fixture, fixture.load(None, None)).ends_with("~/.kube/config (HOME is not set)"));
}

#[tokio::test]
async fn service_account_of_a_pod_is_used() {
    let mut fixture = Fixture::new();
    service_account(&mut fixture);
    let cluster = fixture.load(None, None).unwrap();
    assert_eq!(cluster.url().to_string(), "https://[fd00::1]:6443");
    assert_eq!(authorization(&cluster).await.as_deref(), Some("Bearer mounted"));
    assert_eq!(cluster.namespace(), "default");
    assert!(cluster.tls().config().await.is_ok());
    let token = fixture.path("service-account/token");
    assert_eq!(
        cluster.to_string(),
        format!(
            "https://[fd00::1]:6443 from this pod's service account, with the token in {}",
            token.display()
        )
    );

    fixture.write("service-account/namespace", "agents");
    assert_eq!(fixture.load(None, None).unwrap().namespace(), "agents");

    fixture.write("service-account/token", "rotated");
    cluster.invalidate_credential();
    assert_eq!(authorization(&cluster).await.as_deref(), Some("Bearer rotated"));
}

#[test]
fn incomplete_service_account_is_an_error() {
    let mut fixture = Fixture::new();
    service_account(&mut fixture);
    assert_eq!(
        error(&fixture, fixture.load(None, Some("dev"))),
        "context \"dev\" was given, but the configuration is this pod's service account, which has no contexts; \
         name a kubeconfig too"
    );
    fixture.set("KUBERNETES_SERVICE_PORT", "https");
    assert_eq!(
        error(&fixture, fixture.load(None, None)),
        "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not a valid address: \"fd00::1:https\""
    );
    fixture.set("KUBERNETES_SERVICE_PORT", "443");
    fs::remove_file(fixture.path("service-account/ca.crt")).unwrap();
    assert_eq!(
        error(&fixture, fixture.load(None, None)),
        "cannot read DIR/service-account/ca.crt: No such file or directory (os error 2)"
    );
    fs::remove_file(fixture.path("service-account/token")).unwrap();
    assert_eq!(
        error(&fixture, fixture.load(None, None)),
        "cannot read DIR/service-account/token: No such file or directory (os error 2); is \
         automountServiceAccountToken off? Mount a token there, or name a kubeconfig"
    );
}

#[tokio::test]
async fn first_entry_of_merged_files_is_used() {
    let mut fixture = Fixture::new();
    let first = fixture.write(
        "one/config",
        "current-context: a\n\
         clusters: [{name: c, cluster: {server: 'https://first', insecure-skip-tls-verify: true}}]\n\
         contexts: [{name: a, context: {cluster: c, user: u, namespace: team}}]\n\
         users: null\n",
    );
    let second = fixture.write(
        "two/config",
        "current-context: b\n\
         clusters: [{name: c, cluster: {server: 'https://second'}}]\n\
         contexts: [{name: a, context: {}}, {name: b, context: {cluster: c, user: u}}]\n\
         users: [{name: u, user: {tokenFile: secrets/token}}]\n",
    );
    fixture.write("two/secrets/token", "relative to its file");
    let list = std::env::join_paths([&fixture.path("missing"), &first, &"".into(), &second]).unwrap();
    fixture.set("KUBECONFIG", list);

    let cluster = fixture.load(None, None).unwrap();
    assert_eq!((cluster.url().host(), cluster.namespace()), ("first", "team"));
    assert_eq!(authorization(&cluster).await.as_deref(), Some("Bearer relative to its file"));
    assert!(cluster.to_string().contains("context \"a\" of "), "{cluster}");

    let other = fixture.load(None, Some("b")).unwrap();
    assert_eq!((other.url().host(), other.namespace()), ("first", "default"));

    fixture.set("KUBECONFIG", fixture.path("missing"));
    assert_eq!(
        error(&fixture, fixture.load(None, None)),
        "KUBECONFIG names no file that exists: DIR/missing"
    );
}

#[test]
fn kubeconfig_may_be_json() {
    let fixture = Fixture::new();
    let path = fixture.write(
        "config.json",
        r#"{"current-context": "a", "contexts": [{"name": "a", "context": {"cluster": "c", "user": ""}}],
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:8001/base/"}}], "users": []}"#,
    );
    let cluster = fixture.load(Some(&path), None).unwrap();
    assert_eq!(
        cluster.to_string().replace(path.to_str().unwrap(), "FILE"),
        "http://127.0.0.1:8001/base from context \"a\" of FILE, with no credentials"
    );
}

#[test]
fn errors_have_file_and_line() {
    let fixture = Fixture::new();
    let load = |text: &str| error(&fixture, fixture.load(Some(&fixture.write("config", text)), None));
    for (text, expected) in [
        ("clusters:\n- name: a\n  cluster: s3cret\n", "DIR/config:3: expected a mapping"),
        ("users:\n- name: a\n  user:\n    token: [s3cret]\n", "DIR/config:4: expected a string scalar"),
        ("users:\n- name: a\n  user:\n    exec: s3cret\n", "DIR/config:4: expected a mapping"),
        (
            "clusters:\n- name: a\n  cluster:\n    insecure-skip-tls-verify: s3cret\n",
            "DIR/config:4: invalid boolean",
        ),
        ("clusters: {}\n", "DIR/config:1: expected a sequence"),
        ("[]", "DIR/config:1: expected a mapping"),
        ("", "DIR/config: no current-context; the file has no contexts"),
        (
            "contexts: [{name: a, context: {}}, {name: b, context: {}}]",
            "DIR/config: no current-context; choose one of: a, b",
        ),
        (
            "current-context: x\ncontexts: [{name: a, context: {}}]",
            "DIR/config: there is no context \"x\"; choose one of: a",
        ),
        (
            "current-context: a\ncontexts:\n- name: a\n  context: {cluster: c}\n",
            "DIR/config:3: context \"a\": there is no cluster \"c\"",
        ),
        (
            "current-context: a\nclusters: [{name: c, cluster: {}}]\n\
             contexts:\n- name: a\n  context: {cluster: c, user: u}\n",
            "DIR/config:4: context \"a\": there is no user \"u\"",
        ),
    ] {
        assert_eq!(load(text), expected, "{text}");
    }
    let broken = load("users:\n- name: a\n  user: {token: s3cret\n");
    assert!(broken.starts_with("DIR/config:") && !broken.contains("s3cret"), "{broken}");
    assert_eq!(
        error(&fixture, fixture.load(Some(&fixture.path("none")), None)),
        "cannot read DIR/none: No such file or directory (os error 2); check --kubeconfig"
    );
}

#[test]
fn invalid_cluster_is_an_error_with_its_line() {
    let fixture = Fixture::new();
    for (cluster, expected) in [
        ("", "server is missing"),
        ("server: 'host:6443'", "server: \"host:6443\" is not a URL; write it like https://host:6443"),
        (
            "server: 'https://me:s3cret@host'",
            "server: the URL contains a user name or password; credentials are configured separately",
        ),
        (
            "server: 'https://host', proxy-url: 'http://proxy'",
            "proxy-url is not supported; run agentk where it can connect to the API server directly",
        ),
        (
            "server: 'https://host', insecure-skip-tls-verify: true, certificate-authority: ca.crt",
            "insecure-skip-tls-verify and certificate-authority exclude each other; remove one",
        ),
        (
            "server: 'https://host', certificate-authority-data: '%'",
            "certificate-authority-data is not valid base64",
        ),
        (
            "server: 'https://host', insecure-skip-tls-verify: true, tls-server-name: 'a b'",
            "tls-server-name is neither a DNS name nor an IP address",
        ),
    ] {
        let text = error(&fixture, fixture.with(cluster, ""));
        assert_eq!(text, format!("DIR/config:9: cluster \"c\": {expected}"));
    }
    assert_eq!(
        error(&fixture, fixture.with("server: 'https://host', certificate-authority: ca.crt", "")),
        "cannot read DIR/ca.crt: No such file or directory (os error 2)"
    );
}

#[tokio::test]
async fn server_name_and_authority_are_used_for_tls() {
    let fixture = Fixture::new();
    let cluster = fixture.with(&format!("{SERVER}, tls-server-name: kubernetes"), "").unwrap();
    assert_eq!(cluster.tls().server_name().unwrap().to_str(), "kubernetes");

    let authority = || {
        let key = KeyPair::generate().unwrap();
        CertificateParams::new([]).unwrap().self_signed(&key).unwrap().pem()
    };
    fixture.write("pki/ca.crt", &authority());
    let cluster = fixture.with("server: 'https://host', certificate-authority: pki/ca.crt", "").unwrap();
    let (tls, before) = (cluster.tls(), cluster.tls().config().await.unwrap());
    assert!(std::sync::Arc::ptr_eq(&before, &tls.config().await.unwrap()));
    fixture.write("pki/ca.crt", &authority());
    assert!(!std::sync::Arc::ptr_eq(&before, &tls.config().await.unwrap()));
}
