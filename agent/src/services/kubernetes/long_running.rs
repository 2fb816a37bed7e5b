//! Distinguishes long-running requests, which may wait for their first byte without a limit.

use http::{Method, Uri};

use crate::policy::request_info::{DecodedPath, RequestInfo, RequestTarget};

/// Returns true if the API server itself limits the time of such a request: it is no watch, no log and no stream.
///
/// This is `BasicLongRunningRequestCheck` of k8s.io/apiserver (pkg/server/filters/longrunning.go) with the verbs and
/// subresources of kube-apiserver, whose `--request-timeout` (60 s) is for the same requests. A request that cannot be
/// interpreted has no limit: it may have a path of an application behind `…/proxy/`.
pub(super) fn has_time_limit(method: &Method, uri: &Uri) -> bool {
    let Ok(path) = DecodedPath::new(uri) else { return false };
    let Ok(info) = RequestInfo::new(method, &path, uri.query()) else { return false };
    match info.target {
        RequestTarget::Path(path) => !path.starts_with("/debug/pprof/"),
        RequestTarget::Resource(resource) => {
            !matches!(info.verb, "watch" | "proxy")
                && !matches!(resource.subresource, Some("attach" | "exec" | "log" | "portforward" | "proxy"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_requests_have_a_time_limit() {
        for (target, expected) in [
            ("/version", true),
            ("/api/v1/pods", true),
            ("/api/v1/pods?watch=false", true),
            ("/api/v1/namespaces/a/pods/log", true),
            ("/apis/apps/v1/namespaces/a/deployments/b/scale", true),
            ("/api/v1/pods?watch=1", false),
            ("/api/v1/pods?watch", false),
            ("/api/v1/watch/pods", false),
            ("/api/v1/namespaces/a/pods/b/log", false),
            ("/api/v1/namespaces/a/pods/b/log?follow=true", false),
            ("/api/v1/namespaces/a/pods/b/exec?command=sh", false),
            ("/api/v1/namespaces/a/pods/b/attach", false),
            ("/api/v1/namespaces/a/pods/b/portforward", false),
            ("/api/v1/namespaces/a/services/b/proxy/slow", false),
            ("/api/v1/namespaces/a/services/b/proxy//slow", false),
            ("/debug/pprof/profile?seconds=120", false),
        ] {
            assert_eq!(has_time_limit(&Method::GET, &target.parse().unwrap()), expected, "{target}");
        }
    }
}
