"""What the miniature knows of the world: topics and how people put them, words and their weight."""

from __future__ import annotations

# Topic → clauses that raise it. Option descriptions name the topic, messages use the clauses.
TOPICS: dict[str, tuple[str, ...]] = {
    "refunds": (
        "I want my money back",
        "please reimburse the last charge",
        "the amount for the returned goods never came back",
        "you still owe me what I paid",
    ),
    "invoices": (
        "the bill lists the wrong company",
        "I need a copy of the bill for my books",
        "the tax line on the bill is missing",
        "please correct the billing statement",
    ),
    "late deliveries": (
        "the parcel should have arrived last week",
        "my package is still on its way",
        "the courier has not turned up yet",
        "tracking has not moved for days",
    ),
    "damaged goods": (
        "the box was crushed and the content is broken",
        "it arrived with a crack in it",
        "the item came scratched and dented",
        "one part was shattered when I opened it",
    ),
    "login problems": (
        "I cannot sign in any more",
        "my password is refused",
        "the sign-in page sends me round in circles",
        "I am locked out of my profile",
    ),
    "account security": (
        "someone else used my profile",
        "I got a warning about a strange device",
        "I think I was hacked",
        "there was an access from a foreign country",
    ),
    "subscriptions": (
        "I want to end my monthly plan",
        "the yearly plan renewed by itself",
        "please move me to the smaller plan",
        "my trial turned into a paid plan",
    ),
    "app crashes": (
        "the app closes as soon as I open it",
        "the screen freezes on every start",
        "the program quits without a message",
        "since the update it hangs all the time",
    ),
    "slow performance": (
        "every page takes ages to load",
        "the system is terribly sluggish today",
        "searching takes minutes",
        "it responds far too slowly",
    ),
    "data export": (
        "I need all my records as a file",
        "how do I download my history",
        "please send me a dump of my entries",
        "the download of my data stops halfway",
    ),
    "privacy requests": (
        "delete everything you store about me",
        "tell me which personal details you keep",
        "I object to being tracked",
        "please erase my personal details",
    ),
    "warranty claims": (
        "it failed within the guarantee period",
        "I want a free repair under the guarantee",
        "the guarantee should cover this defect",
        "it broke after two months of normal use",
    ),
    "spare parts": (
        "I need a new hinge for my model",
        "where can I buy a replacement filter",
        "do you sell the small screws separately",
        "I am looking for a new battery for it",
    ),
    "installation help": (
        "I do not understand the setup guide",
        "how do I mount it on the wall",
        "the first setup stops at step three",
        "could someone help me put it together",
    ),
    "job applications": (
        "I would like to work for you",
        "I sent my CV last month",
        "is the advertised position still open",
        "when will you interview candidates",
    ),
    "press enquiries": (
        "I am writing an article about you",
        "our magazine would like an interview",
        "could you comment on the story for our readers",
        "we need a quote for the evening news",
    ),
    "partnerships": (
        "our firm would like to cooperate with you",
        "we want to resell your products",
        "let us discuss a joint offer",
        "we propose to bundle our services",
    ),
    "legal notices": (
        "our lawyer will contact you",
        "this is a formal notice before court",
        "you breach our contract",
        "we claim compensation by law",
    ),
    "training courses": (
        "is there a class for beginners",
        "our staff needs a workshop",
        "when does the next seminar begin",
        "I want to book a lesson with a teacher",
    ),
    "price requests": (
        "what would fifty units cost",
        "please send me an offer for a large order",
        "do you give a discount for schools",
        "I need a quotation by Monday",
    ),
    "address changes": (
        "I have moved to another street",
        "please send mail to my new flat",
        "our office has relocated",
        "my house number is wrong in your files",
    ),
    "payment failures": (
        "my card was declined at the checkout",
        "the transfer bounced twice",
        "the payment page shows an error",
        "I am charged but the order stays unpaid",
    ),
    "missing items": (
        "one of the three pieces was not in the box",
        "the cable is not included although listed",
        "half of the order is absent",
        "the bag was empty when I opened it",
    ),
    "product questions": (
        "does it work with older models",
        "how heavy is the large version",
        "is it suitable for outdoor use",
        "which colours does it come in",
    ),
    "complaints about staff": (
        "the person on the phone was rude",
        "your driver shouted at me",
        "nobody at the desk wanted to help",
        "the agent hung up on me",
    ),
    "praise": (
        "your team did a wonderful job",
        "I just want to say thank you",
        "this was the best service in years",
        "please pass on my compliments",
    ),
    "appointments": (
        "can I come on Tuesday morning instead",
        "I need a slot next week",
        "please cancel my visit on Friday",
        "nobody showed up at the agreed time",
    ),
    "network outages": (
        "the whole office is offline",
        "there has been no connection since noon",
        "the line is dead in our street",
        "none of us can reach the internet",
    ),
    "loyalty points": (
        "my bonus points have vanished",
        "how do I spend my reward points",
        "the last purchase earned no points",
        "when do my points expire",
    ),
    "gift cards": (
        "the voucher code is not accepted",
        "I lost the voucher you sent",
        "can I still use an old voucher",
        "the present voucher shows no balance",
    ),
    "accessibility": (
        "the screen reader skips the menu",
        "the text is too small for my eyes",
        "I need captions for the videos",
        "is there a ramp at the entrance",
    ),
    "language settings": (
        "everything is shown in the wrong language",
        "I want the menus in Spanish",
        "please switch the letters to French",
        "can I read the manual in German",
    ),
}
OPENERS = (
    "Hello,", "Hi there,", "Good morning,", "Dear team,", "To whom it may concern,", "Hey,",
    "Good evening,", "Dear all,",
)  # fmt: skip
CLOSERS = (
    "Thanks in advance.", "Kind regards.", "Please reply soon.", "Best wishes.", "Thank you.",
    "I look forward to your answer.", "Sent from my phone.", "Yours.",
)  # fmt: skip
FILLERS = (
    "I have been a customer for some years.",
    "I tried to call you yesterday.",
    "My neighbour recommended you.",
    "The weather has been odd here.",
    "I am writing from my office.",
    "I hope this reaches the right person.",
    "I could not find it in the manual.",
    "Let me explain what happened.",
    "It is not the first time I write.",
    "I would rather not phone.",
    "My colleague is in copy.",
    "We spoke about it in spring.",
)
# Weight of a mention → how it is introduced.
MENTIONS: dict[int, tuple[str, ...]] = {
    3: ("Above all, {}.", "My main problem: {}.", "Most urgently, {}.", "The key point is: {}."),
    2: ("Also, {}.", "{}.", "Then, {}.", "In addition, {}."),
    1: ("By the way, {}.", "A minor thing: {}.", "Only a side note: {}.", "If you have time: {}."),
}
# Adjective → value from 0 (worst) to 1 (best).
GRADES: dict[str, float] = {
    "dreadful": 0.0, "awful": 0.02, "terrible": 0.05, "bad": 0.18, "poor": 0.22, "weak": 0.28,
    "mediocre": 0.4, "passable": 0.45, "average": 0.5, "acceptable": 0.55, "decent": 0.62,
    "fine": 0.66, "good": 0.75, "pleasant": 0.78, "great": 0.88, "excellent": 0.96,
    "superb": 0.98, "perfect": 1.0,
}  # fmt: skip
# Adverb → how far it moves a value away from the middle.
ADVERBS: dict[str, float] = {"": 1.0, "rather ": 0.7, "somewhat ": 0.5, "really ": 1.2}
ASPECTS = (
    "service", "food", "price", "location", "room", "staff", "delivery", "packaging", "sound",
    "screen", "battery", "design", "comfort", "parking", "breakfast", "manual",
)  # fmt: skip
SCALES: dict[int, tuple[str, ...]] = {
    3: ("negative", "mixed", "positive"),
    4: ("bad", "below average", "above average", "good"),
    5: ("very bad", "bad", "mixed", "good", "very good"),
    7: ("dreadful", "bad", "weak", "average", "decent", "good", "excellent"),
}
# Hedge → probability that what it introduces is so.
HEDGES: dict[str, float] = {
    "certainly": 0.99, "clearly": 0.98, "almost surely": 0.93, "very likely": 0.88,
    "probably": 0.78, "perhaps": 0.6, "possibly": 0.5, "hardly": 0.18, "very unlikely": 0.1,
    "certainly not": 0.01, "clearly not": 0.02, "probably not": 0.22,
}  # fmt: skip
# What a customer's file may say; every attribute can be asked for.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "colour": ("red", "blue", "green", "black", "white", "yellow", "orange", "grey"),
    "size": ("small", "medium", "large", "huge"),
    "country": (
        "Norway", "Spain", "Japan", "Brazil", "Kenya", "Canada", "India", "Poland", "Chile",
        "Egypt",
    ),
    "device": ("phone", "laptop", "tablet", "printer", "camera", "router", "watch", "speaker"),
    "payment": ("cash", "card", "transfer", "voucher", "cheque"),
    "plan": ("basic", "standard", "premium", "family", "student"),
    "weekday": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "department": ("sales", "support", "finance", "research", "logistics", "design"),
    "language": ("English", "French", "German", "Spanish", "Italian", "Dutch", "Czech"),
    "material": ("wood", "glass", "steel", "paper", "cotton", "leather", "plastic"),
}  # fmt: skip
ITEMS = (
    "cup", "chair", "lamp", "table", "bag", "box", "bowl", "shelf", "jar", "frame", "basket",
    "clock",
)  # fmt: skip
# Action and thing of a request; a label is `action_thing`.
ACTIONS: dict[str, tuple[str, ...]] = {
    "cancel": ("I want to cancel {}", "please call off {}", "stop {} for me"),
    "change": ("I need to change {}", "please modify {}", "could you alter {}"),
    "find": ("where can I find {}", "I cannot locate {}", "help me look up {}"),
    "book": ("I would like to book {}", "please reserve {}", "set up {} for me"),
    "pay": ("how do I pay for {}", "I want to settle {}", "charge my card for {}"),
    "share": ("please forward {} to my friend", "I want to share {}", "send {} to a colleague"),
    "check": ("what is the status of {}", "please check {}", "is {} all right"),
    "report": ("I want to report {}", "there is a problem with {}", "let me complain about {}"),
}
THINGS: dict[str, tuple[str, ...]] = {
    "flight": ("my flight", "the plane ticket"),
    "hotel": ("the hotel", "my room for the night"),
    "order": ("my order", "the purchase"),
    "meeting": ("the meeting", "the call with the team"),
    "insurance": ("my insurance", "the coverage"),
    "taxi": ("the taxi", "a cab"),
    "dinner": ("dinner", "the evening meal"),
    "lesson": ("the lesson", "my class"),
    "repair": ("the repair", "the fix of my bike"),
    "ticket": ("the concert ticket", "my seat at the show"),
}
EVENTS = (
    "the sensor in hall {} reported a normal value",
    "{} signed the delivery note",
    "a routine check of unit {} found nothing",
    "{} asked for more paper",
    "the lift near gate {} was cleaned",
    "{} left early for the train",
    "stock of part {} was counted again",
    "the meeting with {} was moved",
    "batch {} passed the test",
    "{} updated the list of contacts",
)
SHADES: dict[str, tuple[int, int, int]] = {
    "red": (214, 40, 40), "green": (46, 160, 67), "blue": (38, 84, 214), "yellow": (240, 205, 40),
    "purple": (136, 48, 180), "orange": (242, 134, 30), "black": (24, 24, 24),
    "white": (245, 245, 245),
}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "ring")
