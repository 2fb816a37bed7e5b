//! The steps of a check at GitLab's kas.

use super::CheckCommand;
use crate::{
    DialError, KasAddress,
    check_report::{CheckReport, StepError, failed},
    connect::GitLabStream,
    gitlab,
};

const REGISTRATION_HINT: &str =
    "check that the address is that of GitLab's kas for agents, and read the log of kas";
const TOKEN_HINT: &str = "create another token of the agent in GitLab (Operate > Kubernetes clusters), and put it into the token file";

impl CheckCommand {
    /// Registers this process at GitLab's kas, as a running agentk does. Opens no stream, so that kas sends no request of a caller.
    pub(super) async fn check_gitlab(
        &self,
        kas: &KasAddress,
        stream: GitLabStream,
        report: &mut CheckReport<'_>,
    ) -> Result<(), StepError> {
        let server = match &stream.server {
            Some(server) => format!("GitLab's kas ({server})"),
            None => "GitLab's kas".to_owned(),
        };
        if !kas.is_grpc() {
            report.ok("upgrade", format!("{server} accepts WebSockets here; the protocol is gRPC"));
        }
        let GitLabStream { io, authorization, .. } = stream;
        let registration = gitlab::anonymous_registration();
        let opened = gitlab::GitLabConnection::open(io, self.target(kas), &authorization, registration).await;
        let connection = match opened {
            Ok(connection) => connection,
            Err(error @ DialError::Unauthorized { .. }) => {
                report.ok("gRPC", format!("{server} answers, and requires an agent token"));
                return Err(failed("authentication", TOKEN_HINT)(error));
            }
            Err(error) => return Err(failed("gRPC", REGISTRATION_HINT)(error)),
        };
        report.ok("gRPC", format!("{server} answers"));
        report.ok("authentication", format!("{} is accepted", self.token));
        connection.close().await;
        Ok(())
    }
}
