//! The files for diffs, which kas reads from the repositories. Any pod can ask any replica for them.

use std::{collections::HashMap, time::Duration};

use agentk_core::services::ServiceError;
use gitops_engine::SourceFile;
use parking_lot::Mutex;
use proto::{
    Reason,
    gitops::{PreviewRequest, SourceNotice, SourceProblem, SyncHead},
};
use tokio::{sync::oneshot, time::timeout};

use super::Gitops;

/// The time that kas may take to read a repository.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The files of a project, or the reason why kas has none.
pub(super) type Preview = Result<(SyncHead, Vec<SourceFile>), SourceProblem>;

/// The diffs that wait for their files.
#[derive(Debug, Default)]
pub(super) struct Previews(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    by_number: HashMap<u64, oneshot::Sender<Preview>>,
}

/// Forgets a diff that waits no longer.
struct Registration<'a> {
    previews: &'a Previews,
    number: u64,
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.previews.0.lock().by_number.remove(&self.number);
    }
}

impl Previews {
    /// Hands the files to the diff with a number. Returns false if it waits no longer.
    pub(super) fn answer(&self, number: u64, preview: Preview) -> bool {
        let waiting = self.0.lock().by_number.remove(&number);
        waiting.is_some_and(|waiting| waiting.send(preview).is_ok())
    }

    fn register(&self) -> (Registration<'_>, oneshot::Receiver<Preview>) {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.0.lock();
        waiting.last += 1;
        let number = waiting.last;
        waiting.by_number.insert(number, sender);
        drop(waiting);
        (Registration { previews: self, number }, receiver)
    }
}

/// Asks kas for the files of a project. The number of the request is chosen here.
pub(super) async fn ask(
    gitops: &Gitops,
    request: PreviewRequest,
) -> Result<(SyncHead, Vec<SourceFile>), ServiceError> {
    let unavailable = |what: &str| ServiceError::new(Reason::SourceUnavailable, what);
    let (registration, receiver) = gitops.previews.register();
    let request = PreviewRequest { number: registration.number, ..request };
    if !gitops.sources.lock().ask(&SourceNotice::Preview(request)) {
        return Err(unavailable("no replica of kas sends manifests to this pod of agentk now; try again"));
    }
    match timeout(TIMEOUT, receiver).await {
        Ok(Ok(Ok(preview))) => Ok(preview),
        Ok(Ok(Err(problem))) => Err(refusal(problem)),
        // The tunnel was lost, or kas is too slow.
        Ok(Err(_)) | Err(_) => {
            Err(unavailable("kas has not sent the files of the project in time; try again"))
        }
    }
}

/// Returns the error of a diff whose files kas does not have. Only a final one is about the manifests.
fn refusal(problem: SourceProblem) -> ServiceError {
    let reason = if problem.is_final { Reason::ManifestsRefused } else { Reason::SourceUnavailable };
    ServiceError::new(reason, problem.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(message: &str, is_final: bool) -> SourceProblem {
        SourceProblem { project: "shop".to_owned(), message: message.to_owned(), is_final }
    }

    #[test]
    fn only_final_problem_is_an_error_of_the_manifests() {
        for (is_final, reason) in [(true, Reason::ManifestsRefused), (false, Reason::SourceUnavailable)] {
            let error = refusal(problem("no such file", is_final));
            assert_eq!((error.reason, &*error.message), (reason, "no such file"));
        }
    }

    #[tokio::test]
    async fn files_reach_the_diff_that_waits_for_them() {
        let previews = Previews::default();
        let (first, of_first) = previews.register();
        let (second, of_second) = previews.register();
        assert!(previews.answer(second.number, Err(problem("no such branch", true))));
        assert_eq!(of_second.await.unwrap().unwrap_err().message, "no such branch");
        assert!(!previews.answer(second.number, Err(problem("", false))), "it was answered");
        let number = first.number;
        drop((first, of_first));
        assert!(!previews.answer(number, Err(problem("", false))), "its caller has gone");
        assert!(previews.0.lock().by_number.is_empty());
    }
}
