use super::*;

fn interpret(method: &str, uri: &str) -> Result<String, UnclearRequestError> {
    let uri: Uri = uri.parse().unwrap();
    let path = DecodedPath::new(&uri)?;
    RequestInfo::new(&method.parse().unwrap(), &path, uri.query()).map(|info| shown(&info))
}

/// `verb resource[/subresource][.group] namespace name`, with `-` for an absent part; or `verb /path`.
fn shown(info: &RequestInfo<'_>) -> String {
    match &info.target {
        RequestTarget::Path(path) => format!("{} {path}", info.verb),
        RequestTarget::Resource(r) => format!(
            "{} {}{}{} {} {}",
            info.verb,
            r.resource,
            r.subresource.map(|sub| format!("/{sub}")).unwrap_or_default(),
            if r.group.is_empty() { String::new() } else { format!(".{}", r.group) },
            r.namespace.unwrap_or("-"),
            r.name.as_deref().unwrap_or("-"),
        ),
    }
}

/// The cases of the test in k8s.io/apiserver, and further ones.
#[test]
fn request_info_is_that_of_the_api_server() {
    for (method, uri, expected) in [
        // Collections.
        ("GET", "/api/v1/namespaces", "list namespaces - -"),
        ("GET", "/api/v1/namespaces/other", "get namespaces other other"),
        ("GET", "/api/v1/namespaces/other/pods", "list pods other -"),
        ("GET", "/api/v1/pods", "list pods - -"),
        ("HEAD", "/api/v1/pods", "list pods - -"),
        ("GET", "/apis/apps/v1/deployments?limit=500", "list deployments.apps - -"),
        ("GET", "/api/v1/nodes/n1", "get nodes - n1"),
        ("POST", "/api/v1/pods", "create pods - -"),
        ("POST", "/api/v1/namespaces/other/pods", "create pods other -"),
        ("DELETE", "/api/v1/namespaces/other/pods", "deletecollection pods other -"),
        ("DELETE", "/api/v1/namespaces/other", "delete namespaces other other"),
        ("DELETE", "/api/v1/namespaces", "deletecollection namespaces - -"),
        // Objects.
        ("GET", "/api/v1/namespaces/other/pods/foo", "get pods other foo"),
        ("HEAD", "/api/v1/namespaces/other/pods/foo", "get pods other foo"),
        ("GET", "/api/v1/namespaces/other/pods/foo?watch=1", "get pods other foo"),
        ("PUT", "/api/v1/namespaces/other/pods/foo", "update pods other foo"),
        ("PATCH", "/apis/apps/v1/namespaces/other/deployments/foo", "patch deployments.apps other foo"),
        ("DELETE", "/api/v1/namespaces/other/pods/foo", "delete pods other foo"),
        (
            "GET",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node",
            "get clusterroles.rbac.authorization.k8s.io - system:node",
        ),
        (
            "GET",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode",
            "get clusterroles.rbac.authorization.k8s.io - system:node",
        ),
        ("GET", "/apis/custom.io/v1/namespaces/a/things/b", "get things.custom.io a b"),
        // Subresources.
        ("GET", "/api/v1/namespaces/other/pods/foo/log?follow=true", "get pods/log other foo"),
        ("GET", "/api/v1/namespaces/other/pods/foo/exec?command=sh", "get pods/exec other foo"),
        ("POST", "/api/v1/namespaces/other/pods/foo/exec?command=sh", "create pods/exec other foo"),
        ("POST", "/api/v1/namespaces/other/pods/foo/attach", "create pods/attach other foo"),
        ("POST", "/api/v1/namespaces/other/pods/foo/portforward", "create pods/portforward other foo"),
        ("POST", "/api/v1/namespaces/other/pods/foo/eviction", "create pods/eviction other foo"),
        ("PUT", "/api/v1/namespaces/other/finalize", "update namespaces/finalize other other"),
        ("PATCH", "/api/v1/namespaces/other/status", "patch namespaces/status other other"),
        ("PUT", "/apis/apps/v1/namespaces/a/deployments/b/scale", "update deployments/scale.apps a b"),
        ("POST", "/api/v1/namespaces/a/serviceaccounts/b/token", "create serviceaccounts/token a b"),
        // Proxies.
        ("GET", "/api/v1/nodes/n1/proxy/logs/", "get nodes/proxy - n1"),
        ("GET", "/api/v1/nodes/n1/proxy/", "get nodes/proxy - n1"),
        (
            "POST",
            "/api/v1/namespaces/a/services/http:web:80/proxy/x/y?z",
            "create services/proxy a http:web:80",
        ),
        ("GET", "/api/v1/namespaces/a/pods/b/proxy", "get pods/proxy a b"),
        ("GET", "/api/v1/proxy/nodes/n1", "proxy nodes - n1"),
        ("GET", "/api/v1/proxy/namespaces/a/pods/b/exec", "proxy pods a b"),
        // Watches.
        ("GET", "/api/v1/namespaces/other/pods?watch=true", "watch pods other -"),
        ("GET", "/api/v1/namespaces/other/pods?watch=1", "watch pods other -"),
        ("GET", "/api/v1/namespaces/other/pods?watch", "watch pods other -"),
        ("GET", "/api/v1/namespaces/other/pods?watch=", "watch pods other -"),
        ("GET", "/api/v1/namespaces/other/pods?watch=yes", "watch pods other -"),
        ("GET", "/api/v1/namespaces/other/pods?watch=0", "list pods other -"),
        ("GET", "/api/v1/namespaces/other/pods?watch=False", "list pods other -"),
        ("GET", "/api/v1/namespaces/other/pods?watch=0&watch=1", "list pods other -"),
        ("GET", "/api/v1/namespaces/other/pods?a=b&w%61tch=%31", "watch pods other -"),
        ("GET", "/api/v1/watch/pods", "watch pods - -"),
        ("GET", "/api/v1/watch/namespaces", "watch namespaces - -"),
        ("GET", "/api/v1/watch/namespaces/other/pods", "watch pods other -"),
        ("GET", "/api/v1/watch/namespaces/other/pods/foo", "watch pods other foo"),
        ("GET", "/apis/apps/v1/watch/deployments", "watch deployments.apps - -"),
        // A selected name.
        ("GET", "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Db", "list pods a b"),
        ("GET", "/api/v1/namespaces/a/pods?fieldSelector=metadata.name==b&watch=1", "watch pods a b"),
        ("GET", "/api/v1/namespaces/a/pods?fieldSelector=status.phase=x,metadata.name=b", "list pods a b"),
        ("GET", "/api/v1/namespaces/a/pods?fieldSelector=metadata.name!=b", "list pods a -"),
        ("GET", "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Db%5C%2Cc", "list pods a -"),
        ("GET", "/api/v1/namespaces/a/pods?fieldSelector=metadata.name=..", "list pods a -"),
        ("DELETE", "/api/v1/namespaces/a/pods?fieldSelector=metadata.name=b", "deletecollection pods a -"),
        // Other paths.
        ("GET", "/", "get /"),
        ("GET", "/api", "get /api"),
        ("GET", "/api/v1", "get /api/v1"),
        ("GET", "/api/v1/", "get /api/v1/"),
        ("GET", "/apis?timeout=32s", "get /apis"),
        ("GET", "/apis/apps", "get /apis/apps"),
        ("GET", "/apis/apps/v1", "get /apis/apps/v1"),
        ("GET", "/openapi/v3/apis/apps/v1?hash=A", "get /openapi/v3/apis/apps/v1"),
        ("HEAD", "/healthz", "head /healthz"),
        ("POST", "/graphql/a/b/c", "post /graphql/a/b/c"),
        ("GET", "/API/v1/pods", "get /API/v1/pods"),
        ("GET", "/%61pi/v1/pods", "list pods - -"),
        ("GET", "/healthz%20x", "get /healthz x"),
    ] {
        let info = interpret(method, uri).unwrap_or_else(|error| panic!("{method} {uri}: {error}"));
        assert_eq!(info, expected, "{method} {uri}");
    }
}

#[test]
fn ambiguous_request_is_unclear() {
    for (method, uri) in [
        ("GET", "//api/v1/pods"),
        ("GET", "//"),
        ("GET", "/api//v1/pods"),
        ("GET", "/api/v1/namespaces//pods"),
        ("GET", "/api/v1/pods/"),
        ("GET", "/api/v1/pods//"),
        ("GET", "/api/v1/namespaces/a/pods/b/log/"),
        ("GET", "/api/v1/namespaces/a/pods/../secrets"),
        ("GET", "/api/v1/namespaces/a/pods/./b"),
        ("GET", "/api/v1/namespaces/a/pods/%2e%2E/secrets"),
        ("GET", "/api/v1/namespaces/a/pods/b%2Fexec"),
        ("GET", "/api/v1/namespaces/a/pods/b%2fexec"),
        ("GET", "/api/v1/namespaces/a/pods/b%252fexec"),
        ("GET", "/api/v1/namespaces/a/pods/b%5c..%5csecrets"),
        ("GET", "/api/v1/namespaces/a/pods/b\\exec"),
        ("GET", "/api/v1/namespaces/a/pods/b;x/exec"),
        ("GET", "/api/v1/namespaces/a/pods/b%3fx"),
        ("GET", "/api/v1/namespaces/a/pods/b%23x"),
        ("GET", "/api/v1/namespaces/a/pods/b%00"),
        ("GET", "/api/v1/namespaces/a/pods/b%zz"),
        ("GET", "/api/v1/namespaces/a/pods/b%2"),
        ("GET", "/api/v1/namespaces/a/pods/b%ff"),
        ("GET", "/version/../api/v1/secrets"),
        ("GET", "/version%2f..%2fapi"),
        ("GET", "/api/v1/namespaces/a/pods/b/proxy/../../secrets"),
        ("GET", "/api/v1/namespaces/a/pods/b/proxy/%2e%2e/x"),
        ("GET", "/api/v1/namespaces/a/pods/b/proxy//x"),
        ("GET", "/api/v1/watch"),
        ("GET", "/api/v1/proxy"),
        ("GET", "/api/v1/pods?x;watch=1"),
        ("GET", "/api/v1/pods?watch=%zz"),
        ("GET", "*"),
        ("OPTIONS", "/api/v1/pods"),
        ("TRACE", "/api/v1/pods"),
        ("BREW", "/version"),
        ("get", "/api/v1/pods"),
    ] {
        assert!(interpret(method, uri).is_err(), "{method} {uri}: {:?}", interpret(method, uri));
    }
}

#[test]
fn lenient_path_is_what_the_api_server_makes_of_an_unclear_one() {
    for (path, merges_slashes, expected) in [
        ("/api/v1/namespaces/a/configmaps/app%2econfig", false, "get configmaps a app.config"),
        ("/api/v1/namespaces/a/configmaps/b/", false, "get configmaps a b"),
        ("//api/v1/namespaces/a/configmaps/b", false, "get configmaps a b"),
        ("/api/v1/namespaces/a/configmaps%2Fb", false, "get configmaps a b"),
        ("/api/v1/namespaces/a/configmaps/b;c", false, "get configmaps a b;c"),
        // The namespace is empty.
        ("/api/v1/namespaces//configmaps", false, "list configmaps  -"),
        ("/api/v1/namespaces/a//configmaps/b", true, "get configmaps a b"),
        ("/", false, "get /"),
        ("/version%ff", false, "get /version\u{fffd}"),
    ] {
        let path = DecodedPath::lenient(path, merges_slashes);
        let info = RequestInfo::new(&Method::GET, &path, None).unwrap();
        assert_eq!(shown(&info), expected);
    }
}
