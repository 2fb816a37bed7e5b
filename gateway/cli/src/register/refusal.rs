//! The refusals of GitLab, and what a user does about them.

use http::StatusCode;
use serde_json::Value;

use crate::{CliError, table::printable};

/// The longest message of GitLab that is printed, in characters.
const MAX_MESSAGE: usize = 300;

/// The failure of a request.
#[derive(Debug)]
pub(super) enum RequestError {
    /// GitLab does not respond, or has failed.
    Unavailable(String),
    /// The server is not the GitLab that it should be, or not with this address. Trying again does not help.
    Unusable(String),
    /// GitLab refuses the request.
    Refused(Refusal),
}

/// A request that GitLab refuses.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    message: String,
    reason: RefusalReason,
}

/// The reason of a refusal, as far as the response has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefusalReason {
    /// The token is unknown, expired or revoked.
    Token,
    /// The token lacks a scope.
    Scope,
    /// The holder of the token lacks a role.
    Role,
    /// There is no such object, or the holder of the token may not see it.
    Missing,
    /// The request is invalid, or its object exists.
    Invalid,
}

/// The project and the GitLab of a step, for its errors.
#[derive(Clone, Copy, Debug)]
pub(super) struct ErrorContext<'a> {
    /// The address of GitLab.
    pub(super) gitlab: &'a str,
    /// The project, as the user has named it.
    pub(super) project: &'a str,
}

impl Refusal {
    /// Reads a response.
    pub(super) fn new(status: StatusCode, body: &[u8]) -> Self {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let lacks_scope = body["error"] == "insufficient_scope";
        let reason = match status {
            StatusCode::UNAUTHORIZED => RefusalReason::Token,
            StatusCode::FORBIDDEN if lacks_scope => RefusalReason::Scope,
            StatusCode::FORBIDDEN => RefusalReason::Role,
            StatusCode::NOT_FOUND => RefusalReason::Missing,
            _ => RefusalReason::Invalid,
        };
        Self { status, message: message(&body), reason }
    }

    /// Returns whether there is no such object.
    pub(super) fn is_missing(&self) -> bool {
        self.reason == RefusalReason::Missing
    }

    /// Returns whether the request is invalid for a reason whose text GitLab writes like this.
    pub(super) fn is_invalid_because(&self, text: &str) -> bool {
        self.reason == RefusalReason::Invalid && self.mentions(text)
    }

    /// Returns whether the message of GitLab has a text in lower case.
    pub(super) fn mentions(&self, text: &str) -> bool {
        self.message.to_lowercase().contains(text)
    }

    /// Returns the error for the user. `role` is the one that the step needs.
    fn into_error(self, ErrorContext { gitlab, project }: ErrorContext<'_>, role: &str) -> CliError {
        let Self { status, message, reason } = self;
        let said =
            if message.is_empty() { status.to_string() } else { format!("{}: {message}", status.as_u16()) };
        match reason {
            RefusalReason::Token => CliError::forbidden(format!(
                "GitLab refuses the token ({said}): it is wrong, expired or revoked; create one with the scope api at \
                 {gitlab}/-/user_settings/personal_access_tokens"
            )),
            RefusalReason::Scope => CliError::forbidden(format!(
                "the token lacks the scope api ({said}): create one with it at \
                 {gitlab}/-/user_settings/personal_access_tokens"
            )),
            RefusalReason::Role => CliError::forbidden(format!(
                "the holder of the token lacks the role {role} in {project} ({said}): a maintainer or owner gives it, or \
                 registers the agent"
            )),
            RefusalReason::Missing => CliError::usage(format!(
                "GitLab has no such object in {project}, or the holder of the token may not see it ({said}): check --project, \
                 and whether the holder has the role {role} there"
            )),
            RefusalReason::Invalid => CliError::usage(format!("GitLab refuses the request ({said})")),
        }
    }
}

impl RequestError {
    /// Returns the error for the user. `role` is the one that the step needs.
    pub(super) fn into_error(self, context: ErrorContext<'_>, role: &str) -> CliError {
        match self {
            Self::Unavailable(message) | Self::Unusable(message) => CliError::unavailable(message),
            Self::Refused(refusal) => refusal.into_error(context, role),
        }
    }

    /// Returns the refusal, if it is one.
    pub(super) fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Unavailable(_) | Self::Unusable(_) => None,
            Self::Refused(refusal) => Some(refusal),
        }
    }
}

/// Returns the message of an error. GitLab has text, lists and maps of lists in `message`, and text in `error_description` or `error`.
fn message(body: &Value) -> String {
    let mut parts = Vec::new();
    let value = ["message", "error_description", "error"].iter().find_map(|key| body.get(key));
    collect(value.unwrap_or(&Value::Null), &mut parts);
    let text: String = parts.join(", ").chars().take(MAX_MESSAGE).collect();
    printable(&text)
}

fn collect<'a>(value: &'a Value, parts: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => parts.push(text),
        Value::Array(values) => values.iter().for_each(|value| collect(value, parts)),
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            parts.push(key);
            collect(value, parts);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: ErrorContext<'_> = ErrorContext { gitlab: "https://gitlab.test", project: "group/shop" };

    /// The shapes are those of GitLab's `lib/api/helpers.rb` and `lib/api/api_guard.rb`.
    #[test]
    fn refusal_names_its_cause_and_the_remedy() {
        for (status, body, code, expected) in [
            (401, r#"{"message":"401 Unauthorized"}"#, 77, "refuses the token (401: 401 Unauthorized)"),
            (
                401,
                r#"{"error":"invalid_token","error_description":"Token was revoked. You have to re-authorize from the user."}"#,
                77,
                "Token was revoked",
            ),
            (
                403,
                r#"{"error":"insufficient_scope","error_description":"The request requires higher privileges than provided by the access token.","scope":"api"}"#,
                77,
                "lacks the scope api",
            ),
            (403, r#"{"message":"403 Forbidden"}"#, 77, "lacks the role Maintainer in group/shop"),
            (404, r#"{"message":"404 Project Not Found"}"#, 64, "404 Project Not Found): check --project"),
            (
                400,
                r#"{"message":{"name":["has already been taken"]}}"#,
                64,
                "(400: name, has already been taken)",
            ),
            (422, "<html>", 64, "(422 Unprocessable Entity)"),
        ] {
            let refusal = Refusal::new(StatusCode::from_u16(status).unwrap(), body.as_bytes());
            let error = refusal.into_error(CONTEXT, "Maintainer");
            assert_eq!(error.code, code, "{body}");
            assert!(error.message.contains(expected), "{}", error.message);
        }
    }

    #[test]
    fn message_of_gitlab_cannot_control_the_terminal() {
        let body = format!(r#"{{"message":["\u001b[2Jgone","{}"]}}"#, "x".repeat(10_000));
        let refusal = Refusal::new(StatusCode::BAD_REQUEST, body.as_bytes());
        assert!(refusal.is_invalid_because("gone"));
        let text = refusal.into_error(CONTEXT, "Maintainer").message;
        assert!(!text.contains('\u{1b}') && text.len() < 400, "{text}");
    }
}
