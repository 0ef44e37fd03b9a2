"""The text that prompts are made of, written for this purpose."""

from __future__ import annotations

__all__ = ["SENTENCES", "TASKS", "WORDS"]

TASKS = (
    "Please tell me in your own words what these notes have in common.",
    "I am preparing a short talk for a mixed audience. Help me turn these points into a story.",
    "Summarize this text for a busy reader, and say which part matters most and why.",
    "What would you ask the author after reading this? Give me a few good questions.",
    "Explain to a ten year old child what is going on here, step by step and without hard words.",
    "Write a friendly reply to this message. Keep its order and do not leave anything out.",
    "These are some lines from my diary. Continue them in the same voice for another page.",
    "Compare the ideas in this passage and list what speaks for and against each of them.",
    "Find mistakes in this reasoning, if there are any, and correct them politely.",
    "Plan a week of work from these remarks, with one clear goal for each day.",
    "Turn this into a list of instructions that a new colleague could follow alone.",
    "Which of these statements would you check first, and how would you check it?",
)

SENTENCES = (
    "The old bridge was closed in spring because the river had carried away two of its stones.",
    "A train leaves the station every twenty minutes, but on Sundays only the slow one stops at the lake.",
    "When the bakery changed its opening hours, half of the street had to change its habits as well.",
    "The gardener planted beans between the rows of corn so that each would help the other to grow.",
    "Her first computer had less memory than the watch that she wears on her arm today.",
    "Nobody could say who had painted the blue door, though everybody remembered the smell of the paint.",
    "A good map leaves out almost everything and keeps the few things that a traveller needs.",
    "The library lends not only books but also tools, telescopes and a rather large tent.",
    "After the storm the children collected branches and built a small hut beside the school.",
    "Water boils at a lower temperature in the mountains, so beans take much longer to cook there.",
    "The musician practised the same four bars until the neighbours could sing them too.",
    "Most of the budget went into the roof, and what was left paid for one coat of paint.",
    "An honest measurement says how it was made, by whom, and how far it may be wrong.",
    "The cat sleeps on the warm engine of the delivery van and wakes up in another village.",
    "They agreed to meet at noon, yet each of them had a different clock in mind.",
    "The new road saves eleven minutes, which the drivers now spend waiting at the next light.",
    "Bees find their way home by the position of the sun, even when clouds hide it.",
    "He wrote every letter twice, once to find out what he thought and once to send it.",
    "The museum keeps its best piece in the cellar because daylight would fade the colours.",
    "A recipe is a program, and the cook who tastes the soup is testing it.",
    "The lighthouse has been automatic for thirty years, but someone still cleans the glass every week.",
    "In the second year the forest came back on its own: first birches, then everything else.",
    "The teacher answered the question with another question, and the class was silent for a while.",
    "Two engineers disagreed about the cause of the noise until a third one listened to the machine.",
    "The market sells apples in autumn, oranges in winter, and stories all year round.",
    "A queue is fair only if everybody can see where it begins and who is next.",
    "The ship carried grain to the north and came back with wood, wool and dried fish.",
    "Because the instructions were in a language that no one spoke, they assembled the shelf by its shadow.",
    "The doctor advised a walk every evening, and the dog was the first to obey.",
    "Snow fell so quietly that the village learned of it only when the doors would not open.",
    "The company keeps a list of its failures and reads it aloud once a year.",
    "One of the pumps ran at half speed, which was enough to keep the cellar dry.",
    "The translator kept the joke and lost the rhyme, and later said that she would do it again.",
    "A glass of water stood on the piano and drew small circles whenever a truck went by.",
    "The committee met four times to decide on the colour of the bench.",
    "Salt was once so precious that soldiers were paid with it and cities were built upon it.",
    "The astronomer shares her telescope on clear nights with anyone who brings a chair.",
    "His grandmother could tell from the sound of the rain how long it would last.",
    "The printer refused the document until somebody removed a single comma from its name.",
    "Every spring the river draws a new line through the meadow, and the farmers move the fence.",
)

_COMMON_WORDS = """
able acid action actor adult advice after agent air alarm album animal answer apple april area argument arm army art
aspect attack author autumn back bag ball band bank base basket beach bean bear beauty bed bell belt bench bike bird
birth blade block blood blue board boat body bone book border bottle bottom bowl box boy brain branch bread break
breath brick bridge brother brown brush bubble budget bus butter button cable cake camera camp candle captain car card
care case castle cat cause cell center chain chair chance change chapter charge cheese chest chief child choice church
circle city class clay clock cloth cloud club coach coal coast coat code coffee coin cold color column comfort common
concert copper copy corn corner cost cotton couple course court cousin cover cow credit crew crop cross crowd crown
cup current curve custom cycle daily damage dance danger dark data date daughter day deal debate decade deep degree
desert design desk detail device diamond dinner dirt dish distance doctor dog dollar door double doubt dream dress
drink driver drop drum dry dust duty eagle ear early earth east easy edge editor effect egg eight elbow empty energy
engine equal error evening event exam example expert eye face fact factor fair family farm father fear feature fence
field figure film final finger fire fish five flag flame flat flight floor flow flower fog food foot force forest fork
form fox frame free friend front fruit fuel full game garage garden gas gate gentle ghost gift girl glass goal gold
good grain grand grass gray great green ground group guard guest guide guitar hair half hall hand happy harbor hard
hat head health heart heat heavy height help hero hill history hole home honey hope horse hospital hotel hour house
human ice idea image index insect iron island item jacket job journey judge juice jump key kind king kitchen knee
knife label lady lake lamp land language large laugh law leader leaf leather left leg lemon letter level library light
limit line lion list local lock long love low lunch machine magic mail main map market mask master match material meal
meaning measure meat medal member memory metal method middle mile milk mind minute mirror mobile model moment money
month moon morning mother motor mountain mouse mouth movie music name nation nature neck needle neighbor nerve net
news night noise noon north nose note novel number nurse object ocean office oil old onion open option orange order
organ outside oven owner page paint pair palace paper parent park part party path peace pear pen pencil people pepper
person phone photo piano picture piece pilot pin pipe place plan plane plant plate player pocket poem point pole
police pool poor pork port potato pound powder power present price pride prince print prison prize problem process
profit proof public purple quarter queen question quick quiet rabbit race radio rail rain range rate raw reason record
red region report rest result rice rich ring river road rock role roof room root rope rose round route row rule sail
salad salt sand scale scene school science score screen sea season seat second secret seed sense series seven shadow
shape sheep sheet shelf shell ship shirt shoe shop short shoulder side sign signal silk silver simple singer sister
size skill skin sky sleep slow small smart smoke smooth snake snow soap social soft soil soldier solid song sound soup
source south space speech speed spoon sport spot spring square staff stage stair stamp star state station steam steel
stem step stick stone store storm story strange street string strong student study style subject sugar summer sun
surface sweet table tail talent tall task taste tax tea teacher team temple ten tent test theory thick thin thread
three throat ticket tide tiger time title tongue tool tooth top total touch tour tower town toy track trade traffic
train travel tree trial truck trust truth tube tunnel twelve twenty uncle union unit upper valley value vehicle video
view village visit voice volume wall war warm watch water wave way wealth weather wedding week weight west wheel white
wide wife wild wind window wine wing winter wire wise woman wonder wood wool word work world writer yard year yellow
young youth zero zone
"""

WORDS = tuple(_COMMON_WORDS.split())
