//! Errors of agentk, as GitLab's kas expects them.

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE},
};
use percent_encoding::percent_decode_str;
use proto::{Fault, Reason, header};
use serde_json::json;
use tunnel::Body;

/// The response to the caller of a request that agentk did not send to the cluster, or that the cluster did not answer.
pub(super) enum ErrorResponse {
    /// An error of gRPC, which kas answers with 502: the cluster failed.
    Grpc(String),
    /// A `Status` of Kubernetes: agentk refused the request.
    Http(Response<Body>),
}

impl ErrorResponse {
    /// Returns the error that a response of a service is, if it is one.
    pub(super) fn from_response(response: &Response<Body>) -> Option<Self> {
        let text = |name| response.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let reason: Reason = text(header::ERROR)?.parse().unwrap_or(Reason::Internal);
        let message = percent_decode_str(text(header::ERROR_MESSAGE).unwrap_or_default());
        let message = format!("agentk: {reason}: {}", message.decode_utf8_lossy());
        if reason.fault() == Fault::Cluster {
            return Some(Self::Grpc(message));
        }
        let mut refusal = status_response(reason.status(), &message);
        if let Some(methods) = response.headers().get(ALLOW) {
            refusal.headers_mut().insert(ALLOW, methods.clone());
        }
        Some(Self::Http(refusal))
    }
}

fn status_response(status: StatusCode, message: &str) -> Response<Body> {
    let body = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": kubernetes_reason(status),
        "code": status.as_u16(),
    });
    let mut response = Response::new(Body::from(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Returns the reason of a `Status` (apimachinery/pkg/apis/meta/v1, `StatusReason`).
fn kubernetes_reason(status: StatusCode) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST => "BadRequest",
        StatusCode::FORBIDDEN => "Forbidden",
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowed",
        StatusCode::INTERNAL_SERVER_ERROR => "InternalError",
        StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use agentk_core::ServiceError;

    fn error(reason: Reason) -> Option<ErrorResponse> {
        ErrorResponse::from_response(&ServiceError::new(reason, "100 % \"refused\"").into_response())
    }

    #[test]
    fn failure_of_the_cluster_is_an_error_of_grpc() {
        for reason in [Reason::ClusterUnreachable, Reason::ClusterTimeout, Reason::ClusterMisbehaved] {
            let Some(ErrorResponse::Grpc(message)) = error(reason) else { panic!("{reason}") };
            assert_eq!(message, format!("agentk: {reason}: 100 % \"refused\""));
        }
        assert!(ErrorResponse::from_response(&Response::new(Body::empty())).is_none());
    }

    #[tokio::test]
    async fn refusal_of_agentk_is_a_status_of_kubernetes() {
        let Some(ErrorResponse::Http(response)) = error(Reason::RefusedByPolicy) else { panic!() };
        assert_eq!(response.status(), 403);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            (&body["kind"], &body["reason"], &body["code"]),
            (&json!("Status"), &json!("Forbidden"), &json!(403))
        );
        assert_eq!(body["message"], "agentk: refused-by-policy: 100 % \"refused\"");
    }

    #[test]
    fn methods_of_a_path_are_kept() {
        let error = ServiceError::new(Reason::MethodNotAllowed, "PUT").with_allow("PUT").into_response();
        let Some(ErrorResponse::Http(response)) = ErrorResponse::from_response(&error) else { panic!() };
        assert_eq!(response.headers()["allow"], "PUT");
    }
}
