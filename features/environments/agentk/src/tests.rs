//! The service with an API server that must not be reached, and with a stand-in for one.

mod api_server;

use std::fs;

use agentk_core::{
    AgentMetrics,
    policy::{PolicyEnforcer, ScopeEnforcer},
    services::kube_client::kube_service,
};
use kube_cluster::KubeCluster;
use proto::{
    AgentId,
    agent_configuration::{Scope, TemplateFile},
};
use serde_json::json;

use self::api_server::ApiServer;
use super::*;

const PATH: &str = "/v1/projects/30/environments/live";
const POLICY: &str = "rules: [{name: a, action: allow, services: [provision], resources: [namespaces]}]";

fn enforcer(text: &str) -> Arc<PolicyEnforcer> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    fs::write(&file, text).unwrap();
    Arc::new(PolicyEnforcer::load(file, Vec::new(), AgentMetrics::default()).unwrap())
}

/// Returns a service whose cluster must not be reached.
fn service(policy: Option<&str>) -> ProvisionService {
    let cluster = KubeCluster::new(|| panic!("the cluster is not reached"));
    let restrictions = Restrictions { policy: policy.map(enforcer), scope: None };
    ProvisionService::new(
        cluster,
        restrictions,
        ProvisionMetrics::register(&mut prometheus_client::registry::Registry::default()),
    )
}

fn settings(template: Option<Result<&str, &str>>) -> ProvisionSettings {
    let text = |text: Result<&str, &str>| text.map(str::to_owned).map_err(str::to_owned);
    let template = template.map(|it| TemplateFile { path: "t/default.yaml".to_owned(), text: text(it) });
    ProvisionSettings { agent: AgentId(7), name: "prod".parse().unwrap(), managed: true, template }
}

async fn send(service: &ProvisionService, method: Method, path: &str) -> ServiceError {
    let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    service.handle(request).await.unwrap_err()
}

async fn post_body(service: &ProvisionService, path: &str, body: String) -> ServiceError {
    let request = Request::post(path).body(Body::from(body)).unwrap();
    EnvironmentsHandler(service.clone()).handle(request).await.unwrap_err()
}

fn job() -> String {
    json!({"tier": "production", "pipeline": 6, "job": 3, "user": 5, "username": "alice"}).to_string()
}

async fn post(service: &ProvisionService) -> ServiceError {
    post_body(service, PATH, job()).await
}

#[tokio::test]
async fn nothing_is_made_before_the_configuration_is_known() {
    let service = service(Some(POLICY));
    assert_eq!(post(&service).await.reason, Reason::EnvironmentNotReady);
    assert_eq!(send(&service, Method::DELETE, PATH).await.reason, Reason::EnvironmentNotReady);
}

/// The owner of the cluster decides whether environments are managed.
#[tokio::test]
async fn environment_is_unmanaged_without_a_policy_that_lists_kinds() {
    for (policy, expected) in [
        (None, "agentk has no --policy-file"),
        (
            Some("rules: [{name: a, action: allow, services: ['*']}]"),
            "has no rule that allows the service provision",
        ),
    ] {
        let service = service(policy);
        let error = post(&service).await;
        assert_eq!(error.reason, Reason::EnvironmentUnmanaged, "also before the configuration is known");
        let sentence = service.set(settings(None)).unwrap();
        assert!(
            sentence.starts_with("resource_management has no effect") && sentence.contains(expected),
            "{sentence}"
        );
        let (delete, get) = (send(&service, Method::DELETE, PATH), send(&service, Method::GET, PATH));
        for (error, reason) in [
            (post(&service).await, Reason::EnvironmentUnmanaged),
            (delete.await, Reason::EnvironmentRefused),
            (get.await, Reason::EnvironmentRefused),
        ] {
            assert_eq!(error.reason, reason);
            assert!(error.message.contains(expected), "{}", error.message);
        }
    }
}

/// Without the key, the built-in template with the role admin must not apply.
#[tokio::test]
async fn environment_is_unmanaged_if_the_configuration_has_no_resource_management() {
    let service = service(Some(POLICY));
    assert_eq!(service.set(ProvisionSettings { managed: false, ..settings(None) }), None);
    assert_eq!(post(&service).await.reason, Reason::EnvironmentUnmanaged);
    assert_eq!(service.set(settings(Some(Err("not a file")))), None);
    assert_eq!(post(&service).await.reason, Reason::EnvironmentRefused);
}

#[tokio::test]
async fn template_that_cannot_be_used_fails_jobs_and_says_where() {
    let service = service(Some(POLICY));
    for (template, expected) in [
        (Ok("objects: []"), "t/default.yaml:1:10: objects: "),
        (Err("t/default.yaml is a directory"), "t/default.yaml is a directory"),
        (
            Ok("objects: [{apiVersion: v1, kind: Namespace, metadata: {name: '{{ .project.path }}'}}]"),
            "t/default.yaml:1: Namespace {{ .project.path }}: .project.path is not known here",
        ),
    ] {
        service.set(settings(Some(template)));
        let error = post(&service).await;
        assert_eq!(error.reason, Reason::EnvironmentRefused);
        assert!(error.message.starts_with(expected), "{}", error.message);
    }
}

/// agentk writes with its own rights. A caller that kas limits to an identity must not use them.
#[tokio::test]
async fn caller_with_an_identity_is_refused() {
    let service = service(Some(POLICY));
    service.set(settings(None));
    for header in ["impersonate-user", "impersonate-group", "impersonate-extra-a"] {
        let request = Request::delete(PATH).header(header, "x").body(Body::empty()).unwrap();
        assert_eq!(service.handle(request).await.unwrap_err().reason, Reason::Forbidden, "{header}");
    }
}

#[tokio::test]
async fn other_requests_are_refused() {
    let service = service(Some(POLICY));
    service.set(settings(None));
    for path in ["/v1/projects/30", "/v1/projects/30/environments/../x"] {
        assert_eq!(send(&service, Method::GET, path).await.reason, Reason::UnknownPath, "{path}");
        assert_eq!(post_body(&service, path, "{}".to_owned()).await.reason, Reason::UnknownPath, "{path}");
    }
    // A caller could invent the facts about a job.
    for method in [Method::POST, Method::PUT, Method::PATCH] {
        assert_eq!(send(&service, method, PATH).await.reason, Reason::MethodNotAllowed);
    }
    let large = format!("{{\"tier\": \"{}\"}}", "x".repeat(MAX_BODY));
    for body in ["1".to_owned(), large] {
        assert_eq!(post_body(&service, PATH, body).await.reason, Reason::BadRequest);
    }
}

/// The rules of docs/managed-resources.md.
const RULES: &str = "
- {name: discovery, action: allow, services: [provision], nonResourceURLs: [/api, '/api/*', /apis, '/apis/*']}
- {name: look, action: allow, services: [provision], verbs: [get, list], resources: ['*']}
- {name: makes, action: allow, services: [provision], verbs: [create, patch, delete], apiGroups: ['', rbac.authorization.k8s.io], resources: [namespaces, serviceaccounts, rolebindings], namespaces: ['live-*']}
";
const NAMESPACE: &str = "/api/v1/namespaces/live-30-7";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/live-30-7/deployments/web";
const BINDING: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/live-30-7/rolebindings/bind-live-30-7";

/// Returns the service with the real client, the policy and the scope in front of an API server.
fn service_of(server: &ApiServer, policy: &str, scope: Option<ScopeEnforcer>) -> ProvisionService {
    let restrictions = Restrictions { policy: Some(enforcer(policy)), scope: scope.map(Arc::new) };
    let client = kube_service(ServiceName::PROVISION, server.service(), &restrictions);
    let cluster = KubeCluster::new(move || kube::Client::new(client, "default"));
    let service = ProvisionService::new(
        cluster,
        restrictions,
        ProvisionMetrics::register(&mut prometheus_client::registry::Registry::default()),
    );
    service.set(settings(None));
    service
}

async fn json(response: Result<Response<Body>, ServiceError>) -> Value {
    let body = response.unwrap().into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&body).unwrap()
}

async fn ensure(service: &ProvisionService) -> Value {
    let request = Request::post(PATH).body(Body::from(job())).unwrap();
    json(EnvironmentsHandler(service.clone()).handle(request).await).await
}

async fn request(service: &ProvisionService, method: Method) -> Value {
    let request = Request::builder().method(method).uri(PATH).body(Body::empty()).unwrap();
    json(service.handle(request).await).await
}

#[tokio::test]
async fn objects_of_the_built_in_template_are_made_and_deleted() {
    let server = ApiServer::start().await;
    let service = service_of(&server, &format!("rules:{RULES}"), None);
    for change in ["created", "unchanged"] {
        let done = ensure(&service).await;
        let changes: Vec<_> = done["objects"].as_array().unwrap().iter().map(|it| &it["change"]).collect();
        assert_eq!(changes, [change, change]);
    }
    assert_eq!(server.paths(), [NAMESPACE, BINDING]);
    assert_eq!(request(&service, Method::GET).await["objects"].as_array().unwrap().len(), 2);
    let deletion = request(&service, Method::DELETE).await;
    assert_eq!((deletion["deleted"].as_array().unwrap().len(), &deletion["kept"]), (2, &json!([])));
    assert!(server.paths().is_empty());
}

/// Objects of others in the namespace are deleted only if a rule of the cluster's owner says so, whatever the mode is.
#[tokio::test]
async fn content_of_others_is_deleted_with_an_explicit_rule_alone() {
    const ALL: &str = "- {name: all, action: allow, services: ['*']}\n";
    const SWEEP: &str = "- {name: sweep, action: allow, services: [provision], verbs: [deletecollection], resources: ['*'], namespaces: ['live-*']}\n";
    for (mode, rules, is_deleted) in [
        ("enforce", String::new(), false),
        ("dry-run", String::new(), false),
        ("enforce", ALL.to_owned(), false),
        ("dry-run", ALL.to_owned(), false),
        ("enforce", SWEEP.to_owned(), true),
        ("dry-run", SWEEP.to_owned(), true),
    ] {
        let server = ApiServer::start().await;
        let service = service_of(&server, &format!("mode: {mode}\nrules:{RULES}{rules}"), None);
        ensure(&service).await;
        server.put(DEPLOYMENT);
        let deletion = request(&service, Method::DELETE).await;
        let left = server.paths();
        assert_eq!(left.is_empty(), is_deleted, "{mode} {rules}: {deletion}");
        assert!(is_deleted || left.contains(&DEPLOYMENT.to_owned()), "{left:?}");
        let reason = deletion["kept"][0]["reason"].as_str().unwrap_or_default();
        assert!(is_deleted || reason.contains("it contains Deployment.apps web"), "{deletion}");
    }
}

/// Rules by labels grant nothing then, so that what the policy lets agentk delete would be kept for ever.
#[tokio::test]
async fn nothing_is_deleted_while_the_policy_lacks_labels() {
    const SWEEP: &str = "- {name: sweep, action: allow, services: [provision], verbs: [deletecollection], resources: ['*'], namespaceSelector: {matchLabels: {team: shop}}}\n";
    let server = ApiServer::start().await;
    let service = service_of(&server, &format!("rules:{RULES}{SWEEP}"), None);
    ensure(&service).await;
    let error = send(&service, Method::DELETE, PATH).await;
    assert_eq!(error.reason, Reason::EnvironmentNotReady);
    assert!(error.message.contains("the labels of namespaces are not known"), "{}", error.message);
    assert_eq!(server.paths(), [NAMESPACE, BINDING]);
    assert_eq!(request(&service, Method::GET).await["objects"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn scope_shows_and_deletes_what_is_in_it() {
    let server = ApiServer::start().await;
    let policy = format!("rules:{RULES}");
    ensure(&service_of(&server, &policy, None)).await;
    let scope = Some(Scope { namespaces: vec!["live-30-7".to_owned()] });
    let scope = ScopeEnforcer::new(scope, AgentMetrics::default());
    let service = service_of(&server, &policy, Some(scope));
    let listed = request(&service, Method::GET).await;
    assert_eq!(listed["objects"].as_array().unwrap().len(), 2, "{listed}");
    let deletion = request(&service, Method::DELETE).await;
    assert_eq!((deletion["deleted"].as_array().unwrap().len(), &deletion["kept"]), (1, &json!([])));
    assert_eq!(server.paths(), [NAMESPACE]);
    // Without its scope, agentk does not say that there are no objects.
    let awaited = ScopeEnforcer::new(None, AgentMetrics::default()).requiring_configured();
    let service = service_of(&server, &policy, Some(awaited));
    assert_eq!(send(&service, Method::GET, PATH).await.reason, Reason::EnvironmentNotReady);
}
