"""Makes tokenizer.json and router.pt of messages that it makes up itself: some seconds on a processor."""

from __future__ import annotations

import random

import torch
from net import LONGEST, TEAMS, WEIGHTS, WORDS, Router
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

OPENINGS = (
    "",
    "Hello,",
    "Dear all,",
    "Good morning.",
    "I hope that you are well.",
    "Sorry to bother you again.",
)
SAID = {
    "billing": (
        "the invoice of last month shows a wrong amount",
        "I was charged twice and would like a refund",
        "please change the address on my bill",
        "my credit card was declined although there is money on it",
    ),
    "delivery": (
        "the parcel has not arrived yet",
        "the driver left my package in the rain",
        "please send it to another address",
        "the box was open and half of it was missing",
    ),
    "support": (
        "the app closes when I sign in",
        "I forgot my password and the link does not work",
        "the screen stays black after the update",
        "how do I connect it to the network",
    ),
}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)  # it is small


def message(team: str) -> str:
    """Return an opening and parts of what the team's customers say."""
    said = [random.choice(SAID[team]).split() for _ in range(random.randint(1, 4))]
    parts = [words[random.randrange(len(words) // 2) :][: random.randint(4, 8)] for words in said]
    return " ".join([random.choice(OPENINGS), *(f"{' '.join(words).capitalize()}." for words in parts)])


def learned(texts: list[str]) -> Tokenizer:
    """Return a tokenizer that has learnt which pieces of words these texts are made of."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=WORDS, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    return tokenizer


teams = random.choices(range(len(TEAMS)), k=1500)
texts = [message(TEAMS[team]) for team in teams]
tokenizer = learned(texts)
tokenizer.save("tokenizer.json")

tokenizer.enable_padding()
tokenizer.enable_truncation(LONGEST)
encodings = tokenizer.encode_batch(texts)
tokens = torch.tensor([encoding.ids for encoding in encodings])
mask = torch.tensor([encoding.attention_mask for encoding in encodings])
wanted = torch.tensor(teams)

router = Router()
optimizer = torch.optim.Adam(router.parameters(), lr=0.005)
for _ in range(4):
    for batch in torch.randperm(len(texts)).split(25):
        optimizer.zero_grad()
        torch.nn.functional.nll_loss(router(tokens[batch], mask[batch]).log(), wanted[batch]).backward()
        optimizer.step()
right = (router(tokens, mask).argmax(dim=1) == wanted).float().mean().item()
torch.save(router.state_dict(), WEIGHTS)
print(f"{len(texts)} messages, {right:.2f} right")
