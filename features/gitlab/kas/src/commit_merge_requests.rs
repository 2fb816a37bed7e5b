//! The merge requests that brought commits, in GitLab's REST API.

use environments_wire::JobFacts;
use serde::Deserialize;

use super::{
    Credential, Endpoint, GitLabClient, GitLabError,
    client::ObjectIds,
    project_deployments::{none_if_missing, time, url},
};

/// The merge requests of one page. GitLab lists at most 100.
const PAGE: &str = "100";

/// A merge request that brought a commit.
#[derive(Debug, Deserialize)]
struct MergeRequestEntry {
    iid: u64,
    project_id: u64,
    state: Option<String>,
    target_branch: Option<String>,
    merged_at: Option<String>,
    web_url: Option<String>,
}

impl GitLabClient {
    /// Adds the merge request that brought the commit of a job to its facts, unless its pipeline is that of one.
    ///
    /// # Errors
    ///
    /// GitLab refuses the credential, or gives no usable answer.
    pub async fn add_merge_request(
        &self,
        project: u64,
        job: &mut JobFacts,
        credential: Credential<'_>,
    ) -> Result<(), GitLabError> {
        let Some(commit) = job.commit.as_deref().filter(|commit| is_commit(commit)) else { return Ok(()) };
        if job.facts.merge_request.is_some() {
            return Ok(());
        }
        let id = project.to_string();
        let ids = ObjectIds { project: &id, object: commit, ..ObjectIds::default() };
        let query = [("per_page", PAGE)];
        let found: Option<Vec<MergeRequestEntry>> =
            none_if_missing(self.get_at(Endpoint::CommitMergeRequests, ids, &query, credential).await)?;
        let branch = job.facts.reference.as_deref();
        if let Some(merged) = merged(found.unwrap_or_default(), project, branch) {
            job.facts.merge_request = Some(merged.iid);
            job.facts.merge_request_url = merged.web_url.and_then(url);
        }
        Ok(())
    }
}

/// Returns the merge request of a project that was merged last, if possible into this branch: a commit may have come into one branch by a
/// merge request, and into another branch by the next one.
fn merged(found: Vec<MergeRequestEntry>, project: u64, branch: Option<&str>) -> Option<MergeRequestEntry> {
    let is_merged =
        |entry: &MergeRequestEntry| entry.project_id == project && entry.state.as_deref() == Some("merged");
    found.into_iter().filter(is_merged).max_by_key(|entry| {
        (branch.is_some() && entry.target_branch.as_deref() == branch, time(entry.merged_at.clone()))
    })
}

/// Returns whether a text is the full id of a commit, which may be a part of a path.
fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA: &str = "99d03678b90d914dbb1b109132516d71a4a03ea8";

    #[test]
    fn merge_request_of_a_commit_is_the_last_one_that_was_merged_into_its_branch() {
        let entry = |iid: u64, project_id: u64, state: &str, branch: &str, day: u64| MergeRequestEntry {
            iid,
            project_id,
            state: Some(state.to_owned()),
            target_branch: Some(branch.to_owned()),
            merged_at: Some(format!("2026-01-0{day}T00:00:00.000Z")),
            web_url: None,
        };
        let found = || {
            vec![
                entry(11, 30, "merged", "main", 3),
                entry(10, 30, "merged", "main", 4),
                entry(12, 30, "merged", "develop", 5),
                entry(13, 30, "opened", "main", 6),
                entry(14, 31, "merged", "main", 7),
            ]
        };
        for (branch, expected) in [(Some("main"), 10), (Some("develop"), 12), (Some("v1.0"), 12), (None, 12)]
        {
            assert_eq!(merged(found(), 30, branch).map(|entry| entry.iid), Some(expected), "{branch:?}");
        }
        assert!(merged(vec![entry(13, 30, "closed", "main", 1)], 30, None).is_none());
        for (text, expected) in
            [(SHA, true), ("99d03678", false), ("../../../99d03678b90d914dbb1b109132516d71", false)]
        {
            assert_eq!(is_commit(text), expected, "{text}");
        }
    }
}
