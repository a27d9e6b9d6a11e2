//! The agent of the README as code for tests. `approvals` checks that it equals the agent of the
//! README and of the example.

use faultline_worker::{Agent, Context, Error, Offer, Question, reason};

pub(crate) fn offer() -> Offer {
    Offer::new("refunds", Refunds)
}

struct Refunds;

impl Agent for Refunds {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let euros: u32 = cx.text().trim().parse().map_err(|_| {
            Error::new(&reason::INVALID_ARGUMENT).because("Send whole euros, such as 25")
        })?;
        if euros > 100 {
            let answer = cx.ask(Question::approval(format!("Pay back {euros} €?"))).await?;
            if !answer.approved() {
                return Err(Error::rejected("A human said no"));
            }
        }
        cx.artifact("receipt", format!("Paid back {euros} €")).await
    }
}
