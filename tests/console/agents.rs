//! Agents for the console: a chain of delegations whose last agent fails, and agents that ask
//! questions.

use std::time::Duration;

use faultline_worker::{Agent, Context, Error, Offer, Question, reason};
use serde_json::json;

/// Delegates its whole task to one agent.
struct Relay(&'static str);

impl Agent for Relay {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        cx.status(format!("Asking {}", self.0)).await?;
        let made = cx.delegate(self.0, cx.text()).await?;
        cx.artifact("answer", made.text()).await
    }
}

/// Delegates to the writer, then to the next agent of the chain.
struct Planner;

impl Agent for Planner {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let notes = cx.delegate("writer", "Refund of order 4711: check the invoice first.").await?;
        cx.artifact("notes", notes.text()).await?;
        let plan = json!({"order": 4711, "steps": ["find the invoice", "pay back"]});
        cx.artifact("plan", plan).await?;
        Relay("research").run(cx).await
    }
}

struct Writer;

impl Agent for Writer {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        cx.artifact("text", cx.text()).await
    }
}

/// The last agent of the chain, which always fails.
struct Ledger;

impl Agent for Ledger {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        cx.sleep(Duration::from_millis(80)).await?;
        Err(Error::new(&reason::RATE_LIMITED)
            .because("The card processor takes 20 calls a minute; this was the 21st")
            .code("CARD_17")
            .retry_after(Duration::from_millis(250)))
    }
}

/// Asks a question with a form, and returns the answer.
struct Refunds;

impl Agent for Refunds {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let schema = json!({
            "type": "object",
            "required": ["amount", "payer"],
            "properties": {
                "amount": {
                    "type": "integer",
                    "title": "Amount in euros",
                    "description": "The policy allows 500 without a second pair of eyes",
                    "minimum": 1,
                    "maximum": 500,
                },
                "due": {
                    "type": "string",
                    "title": "Due",
                    "format": "date-time",
                    "description": "When it has to be paid by",
                },
                "notify": {"type": "boolean", "title": "Tell the customer", "default": true},
                "payer": {
                    "type": "string",
                    "title": "Who pays",
                    "enum": ["shop", "carrier"],
                    "enumNames": ["the shop", "the carrier"],
                },
            },
        });
        let question = Question::input("How much may the refund for order 4711 be?");
        let answer = cx.ask(question.schema(schema)).await?;
        if !answer.is_accepted() {
            return Err(Error::rejected("A human said no"));
        }
        cx.artifact("receipt", format!("Paid back: {}", answer.value())).await
    }
}

struct Deploys;

impl Agent for Deploys {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let approved = cx.ask(Question::approval("Deploy to production?")).await?.approved();
        cx.artifact("result", if approved { "deployed" } else { "left as it was" }).await
    }
}

pub(crate) fn offers() -> [Offer; 8] {
    [
        Offer::new("planner", Planner),
        Offer::new("research", Relay("search")),
        Offer::new("search", Relay("billing")),
        Offer::new("billing", Relay("ledger")),
        Offer::new("ledger", Ledger),
        Offer::new("writer", Writer),
        Offer::new("refunds", Refunds),
        Offer::new("deploys", Deploys),
    ]
}
