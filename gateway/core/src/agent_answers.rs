//! The answers of many agents to one question, until one deadline.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::time::{Instant, timeout_at};

/// The time for all answers. An agent waits up to ten seconds until the objects of its cluster are loaded.
const TIME: Duration = Duration::from_secs(12);

/// The time until which kas waits for the answers to a question.
#[derive(Clone, Copy, Debug)]
pub struct AnswerDeadline(Instant);

impl AnswerDeadline {
    /// Returns the deadline of a question that begins now.
    pub fn start() -> Self {
        Self(Instant::now() + TIME)
    }

    /// Returns the deadline as an instant, for what has to be known before agents are asked.
    pub fn instant(self) -> Instant {
        self.0
    }

    /// Asks `at_once` agents at the same time, and returns the answers in the order of the questions. The error of an agent without an
    /// answer at the deadline says so.
    pub async fn answers<T, F>(self, questions: Vec<F>, at_once: usize) -> Vec<Result<T, String>>
    where
        F: Future<Output = Result<T, String>>,
    {
        let timed = questions.into_iter().enumerate().map(|(number, question)| async move {
            let answer = timeout_at(self.0, question).await;
            (number, answer.unwrap_or_else(|_| Err(late())))
        });
        // Not in their order: one that hangs must not take the turn of another one.
        let mut answers: Vec<_> = stream::iter(timed).buffer_unordered(at_once).collect().await;
        answers.sort_unstable_by_key(|(number, _)| *number);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }
}

fn late() -> String {
    format!("the agent did not respond within {} s", TIME.as_secs())
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::{FutureExt as _, future::BoxFuture};
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn agents_that_hang_leave_their_order_and_the_turns_of_others() {
        let start = Instant::now();
        let questions: Vec<BoxFuture<'static, Result<u32, String>>> = vec![
            pending().boxed(),
            ready(Err("refused".to_owned())).boxed(),
            sleep(Duration::from_secs(9)).map(|()| Ok(2)).boxed(),
            ready(Ok(3)).boxed(),
        ];
        let answers = AnswerDeadline::start().answers(questions, 2).await;
        assert_eq!(answers, [Err(late()), Err("refused".to_owned()), Ok(2), Ok(3)]);
        assert_eq!(start.elapsed(), TIME);
    }
}
