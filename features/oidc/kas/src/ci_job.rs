//! The CI job that an OIDC token belongs to.

use oidc::Claims;
use proto::audit::CiJob;
use serde_json::Value;

/// The longest text, in characters.
const MAX_TEXT: usize = 255;

/// Returns the CI job that the claims of a token describe, or `None` if it is not the token of a job.
///
/// These are the claims of [GitLab](https://docs.gitlab.com/ci/secrets/id_token_authentication/) and of
/// [GitHub](https://docs.github.com/en/actions/reference/security/oidc).
pub(crate) fn of_claims(claims: &Claims) -> Option<CiJob> {
    let is_github = !claims.contains_key("job_id");
    let claim = |gitlab: &str, github: &str| text(claims.get(if is_github { github } else { gitlab })?);
    if is_github && !(claims.contains_key("run_id") && claims.contains_key("repository")) {
        return None;
    }
    let job = CiJob {
        id: claim("job_id", ""),
        pipeline: claim("pipeline_id", "run_id"),
        project_id: claim("project_id", "repository_id"),
        project: claim("project_path", "repository"),
        user: claim("user_login", "actor"),
        environment: claim("environment", "environment"),
        environment_tier: claim("deployment_tier", ""),
        commit: claim("sha", "sha"),
    };
    (!job.is_empty()).then_some(job)
}

/// Returns a claim as a text: issuers send ids as texts or as numbers.
pub(crate) fn text(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect(),
        Value::Number(number) => number.to_string(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => String::new(),
    };
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(claims: &Value) -> Option<Value> {
        of_claims(claims.as_object().unwrap()).map(|job| serde_json::to_value(job).unwrap())
    }

    #[test]
    fn job_of_gitlab_and_of_github_is_known() {
        let gitlab = json!({
            "sub": "project_path:shop/web", "job_id": "302", "pipeline_id": "301", "project_id": 300,
            "project_path": "shop/web", "user_login": "alice", "environment": "prod", "deployment_tier": "production",
            "sha": "714a629c", "run_id": "of another program",
        });
        let expected = json!({
            "id": "302", "pipeline": "301", "project_id": "300", "project": "shop/web", "user": "alice",
            "environment": "prod", "environment_tier": "production", "commit": "714a629c",
        });
        assert_eq!(job(&gitlab), Some(expected));
        let github = json!({
            "run_id": "7", "repository": "octo/web", "repository_id": "8", "actor": "bob", "environment": "prod", "sha": "1a",
        });
        let expected = json!({
            "pipeline": "7", "project_id": "8", "project": "octo/web", "user": "bob", "environment": "prod", "commit": "1a",
        });
        assert_eq!(job(&github), Some(expected));
    }

    #[test]
    fn token_of_a_person_is_no_job_and_texts_are_short() {
        for claims in
            [json!({}), json!({"sub": "alice", "sha": "1"}), json!({"run_id": "1"}), json!({"job_id": {}})]
        {
            assert_eq!(job(&claims), None, "{claims}");
        }
        let long = job(&json!({"job_id": "x\n".repeat(1000)})).unwrap();
        assert_eq!(long["id"], "x".repeat(MAX_TEXT));
    }
}
