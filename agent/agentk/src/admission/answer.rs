//! The answers of the webhook (`admission.k8s.io/v1`).

use agentk_policy::admission_review::API_VERSION;
use serde::Serialize;

/// The `kind` of the answers.
const KIND: &str = "AdmissionReview";

/// The answer to a question.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AdmissionAnswer<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: AdmissionResponse<'a>,
}

#[derive(Debug, Serialize)]
struct AdmissionResponse<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status<'a>>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    warnings: &'a [String],
}

#[derive(Debug, Serialize)]
struct Status<'a> {
    code: u16,
    reason: &'static str,
    message: &'a str,
}

impl<'a> AdmissionAnswer<'a> {
    /// Returns an answer that lets the request pass, with these warnings for its user.
    pub(super) fn allowed(uid: &'a str, warnings: &'a [String]) -> Self {
        Self::new(AdmissionResponse { uid, allowed: true, status: None, warnings })
    }

    /// Returns an answer that refuses the request.
    pub(super) fn refused(uid: &'a str, message: &'a str) -> Self {
        let status = Some(Status { code: 403, reason: "Forbidden", message });
        Self::new(AdmissionResponse { uid, allowed: false, status, warnings: &[] })
    }

    fn new(response: AdmissionResponse<'a>) -> Self {
        Self { api_version: API_VERSION, kind: KIND, response }
    }
}
