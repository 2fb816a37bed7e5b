//! The diff of a commit, as agentk makes it: with the identity of the project's syncs, and without a caller.

use std::time::Duration;

use gitops_wire::MergeRequestError;
use http::{Method, Request, StatusCode};
use kas_core::{
    agent_requests::{AgentRequestError, json, request, send},
    attachments::{AgentSubscription, Lines},
};
use manifest_diff::DiffComment;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use proto::{
    ServiceName,
    agent_configuration::gitops::GitRef,
    gitops::{DiffLine, DiffRequest, DiffSummary, PROJECTS_PATH},
};
use tokio::time::timeout;
use tunnel::{Body, Tunnel};

use super::note::{NoteSection, SectionSubject};

/// The time for the head of the response, before which kas reads the files and agentk waits for other diffs.
const HEAD_TIMEOUT: Duration = Duration::from_secs(120);
/// The time for a diff of thousands of objects.
const TIMEOUT: Duration = Duration::from_secs(420);
/// The longest line: an object of the API server has at most 1.5 MiB, and a diff has two versions of it.
const MAX_LINE: usize = 4 << 20;
/// The most bytes of the objects in a section. A reader opens the whole diff for more.
const MAX_COMMENT: usize = 60_000;
/// The time after which another attempt is useful.
const RETRY: Duration = Duration::from_secs(10);

/// Returns the section about a commit: the changes that a sync would make, or the reason why there would be no sync.
///
/// # Errors
///
/// agentk makes no diff now.
pub(super) async fn diff_section(
    tunnel: &Tunnel,
    subscription: &AgentSubscription,
    subject: &SectionSubject<'_>,
) -> Result<NoteSection, MergeRequestError> {
    let made = async {
        match send(tunnel, diff_request(subject), HEAD_TIMEOUT).await {
            Ok(response) => read_diff(subscription.lines_of(response, MAX_LINE), subject).await,
            // agentk has this status for wrong manifests only. All else may end, and its text is not for a public note.
            Err(AgentRequestError::Refused(status, message))
                if status == StatusCode::UNPROCESSABLE_ENTITY =>
            {
                Ok(subject.error(&message))
            }
            Err(error) => Err(unavailable(&error.to_string())),
        }
    };
    timeout(TIMEOUT, made).await.unwrap_or_else(|_| Err(unavailable("the diff takes too long")))
}

fn diff_request(subject: &SectionSubject<'_>) -> Request<Body> {
    let name = utf8_percent_encode(subject.project, NON_ALPHANUMERIC);
    let reference = Some(GitRef::Commit(subject.commit.to_owned()));
    let body = json(&DiffRequest { reference, ..DiffRequest::default() });
    request(Method::POST, ServiceName::GITOPS, &format!("{PROJECTS_PATH}/{name}/diff"), body)
}

/// Reads the lines of a diff. It keeps only the part that the section has.
async fn read_diff(
    mut lines: Lines<Body>,
    subject: &SectionSubject<'_>,
) -> Result<NoteSection, MergeRequestError> {
    let mut comment = DiffComment::new(MAX_COMMENT);
    loop {
        match lines.next::<DiffLine>().await.map_err(|error| unavailable(&error))? {
            None => return Err(unavailable("the diff was cut before its end")),
            Some(DiffLine::End(summary)) => {
                // The title of the section has the version.
                let summary = DiffSummary { reference: String::new(), commit: None, ..summary };
                let is_without_changes = comment.is_without_changes(&summary);
                return Ok(subject.diff(&comment.finish(&summary, &subject.command()), is_without_changes));
            }
            Some(line) => comment.push(&line),
        }
    }
}

fn unavailable(message: &str) -> MergeRequestError {
    MergeRequestError::Unavailable { message: message.to_owned(), retry_after: RETRY }
}
