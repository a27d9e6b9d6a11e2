//! An agent that refunds money: small sums at once, large ones after the approval of a human.

use std::process::ExitCode;

use faultline_worker::{Agent, Context, Error, Offer, Question, reason};

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

#[tokio::main]
async fn main() -> ExitCode {
    let offer = Offer::new("refunds", Refunds).description("Pays money back");
    faultline_worker::main(|worker| worker.offer(offer)).await
}
