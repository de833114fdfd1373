"""What e-mails say in the languages that are usual in them: greetings, sign-offs, attributions, header names.

Phrases are compared case-folded. A phrase that is missing here is not found, so additions are welcome.
"""

from __future__ import annotations


def _phrases(text: str) -> frozenset[str]:
    return frozenset(" ".join(phrase.split()).casefold() for phrase in text.split(";") if phrase.strip())


SALUTATIONS = _phrases("""
dear; my dear; dearest; hi; hello; hey; hiya; greetings; good morning; good afternoon; good evening; good day; to;
hallo; guten tag; guten morgen; guten abend; liebe; lieber; liebes; sehr geehrte; sehr geehrter; geehrte; geehrter;
verehrte; werte; werter; moin; servus; grüß gott; grüezi; bonjour; bonsoir; cher; chère; chers; chères; salut;
coucou; hola; estimado; estimada; estimados; estimadas; querido; querida; queridos; buenos días; buenas tardes;
buenas noches; apreciado; apreciada; olá; oi; caro; cara; caros; prezado; prezada; prezados; bom dia; boa tarde; boa
noite; ciao; gentile; gentili; gent.mo; gent.ma; egregio; egregia; buongiorno; buonasera; salve; spettabile; cari;
care; beste; geachte; hoi; dag; goedemorgen; goedemiddag; goedenavond; lieve; hej; hei; hejsan; bästa; kära; käre;
kære; kjære; god morgon; god morgen; god dag; hyvä; moi; cześć; dzień dobry; szanowny; szanowna; szanowni; drogi;
droga; witaj; ahoj; dobrý den; vážený; vážená; vážení; milý; milá; здравствуйте; здравствуй; уважаемый; уважаемая;
уважаемые; дорогой; дорогая; привет; добрый день; доброе утро; добрый вечер; γεια σας; γεια σου; αγαπητέ; αγαπητή;
αξιότιμε; αξιότιμη; merhaba; sayın; sevgili; değerli; مرحبا; مرحباً; أهلا; عزيزي; عزيزتي; السيد; السيدة; שלום; היי;
לכבוד; नमस्ते; प्रिय; 尊敬的; 亲爱的; 親愛的; 敬爱的; 你好; 您好; 안녕하세요; 친애하는; 拝啓
""")

TITLES = _phrases("""
mr; mrs; ms; miss; mx; sir; madam; dame; lord; lady; dr; prof; professor; doctor; rev; fr; hon; capt; maj; col; lt;
sgt; jr; sr; ii; iii; esq; phd; md; mba; bsc; msc; ba; ma; herr; herrn; frau; fräulein; dipl; ing; mag; monsieur;
madame; mademoiselle; m; mm; mme; mlle; maître; me; señor; señora; señorita; sra; srta; don; doña; senhor; senhora;
dom; dona; sig; sigg; signor; signora; signore; signorina; dott; dottor; dottore; dottoressa; dott.ssa; avv; arch;
heer; mevrouw; mevr; mw; dhr; de heer; fru; fröken; frk; pan; pani; państwo; paní; г; г-н; г-жа; господин; госпожа;
κύριε; κυρία; κ; bey; hanım; sn; السيد; السيدة; الأستاذ; الدكتور; מר; גברת; גב; ד"ר; श्री; श्रीमती; जी
""")

PARTICLES = _phrases("""
van; von; der; den; de; da; do; dos; di; del; della; la; le; du; des; el; al; bin; ibn; bint; ter; ten; zu; zum; y;
af; av
""")

# Titles and particles that are names as well: Don Smith, Al Gore, Yo-Yo Ma. The latter only as the last word.
NAMES_TOO = _phrases("""
don; dona; dom; ma; ba; al; van; della; di; del; bin; la; le
""")
SURNAMES_TOO = _phrases("""
herr; lord; dame; pan; heer; hon; ing; maj; mag
""")
DEGREES = _phrases("""
ma; ba
""")

JOINERS = _phrases("""
and; or; & ; und; et; y; e; ed; en; og; och; ja; i; a; и; και; ve; و; ו; 和; 및; /; +
""")

# Addressed, but as nobody in particular.
NOBODY = _phrases("""
all; team; everyone; everybody; folks; there; again; you; both; friend; friends; colleague; colleagues; customer;
customers; client; clients; user; users; member; members; sir; madam; sirs; ladies; gentlemen; whom; it; may;
concern; sir/madam; manager; hiring; support; service; valued; reader; readers; guys; teacher; committee; staff;
world; to; the; my; our; thanks; thank; sorry; yes; no; sure; okay; ok; please; great; good; well; damen; herren;
team; alle; zusammen; kunde; kundin; kolleginnen; kollegen; tous; toutes; équipe; client; cliente; todos; todas;
equipo; cliente; equipe; tutti; allen; iedereen; klant; alla; alle; kaikki; wszyscy; państwo; коллеги; клиент; 客户;
大家; 各位; お客様; 고객
""")

SIGN_OFFS = _phrases("""
regards; best; best regards; kind regards; kindest regards; warm regards; warmest regards; many regards; with
regards; with kind regards; with best regards; with warm regards; with kindest regards; best wishes; with best
wishes; warm wishes; all the best; all my best; my best; very best; sincerely; sincerely yours; yours sincerely;
most sincerely; yours faithfully; faithfully; yours truly; yours; truly yours; very truly yours; respectfully;
respectfully yours; yours respectfully; cordially; warmly; kindly; cheers; thanks; many thanks; thank you; thanks
again; thank you again; thanks so much; thanks a lot; thank you so much; thank you very much; thanks in advance;
thank you in advance; with thanks; with many thanks; with gratitude; with appreciation; gratefully; take care; love;
looking forward; see you soon; talk soon; br; kr; rgds; thx; ta; have a great day; have a nice day; best, as always;
mit freundlichen grüßen; mit freundlichen grüssen; mit freundlichen gruessen; mit freundlichem gruß; mit besten
grüßen; mit herzlichen grüßen; mit lieben grüßen; freundliche grüße; freundliche grüsse; beste grüße; beste grüsse;
viele grüße; viele grüsse; liebe grüße; herzliche grüße; herzlichst; schöne grüße; grüße; gruß; gruss; lg; vg; mfg;
bg; hochachtungsvoll; danke; vielen dank; besten dank; mit bestem dank; cordialement; bien cordialement; très
cordialement; bien à vous; bien à toi; sincèrement; salutations; salutations distinguées; meilleures salutations;
sincères salutations; bien sincèrement; respectueusement; amicalement; amitiés; merci; merci d'avance; bises; à
bientôt; saludos; saludos cordiales; un saludo; un cordial saludo; cordiales saludos; atentamente; muy atentamente;
cordialmente; un abrazo; un fuerte abrazo; gracias; muchas gracias; atte; atenciosamente; cumprimentos; melhores
cumprimentos; com os melhores cumprimentos; abraço; abraços; obrigado; obrigada; att; saudações; cordiais saudações;
cordiali saluti; distinti saluti; saluti; un saluto; un cordiale saluto; cari saluti; grazie; grazie mille; met
vriendelijke groet; met vriendelijke groeten; met hartelijke groet; vriendelijke groet; vriendelijke groeten;
hartelijke groeten; groet; groeten; groetjes; hoogachtend; bedankt; mvg; med vänlig hälsning; med vänliga
hälsningar; vänlig hälsning; vänliga hälsningar; hälsningar; mvh; tack; med venlig hilsen; venlig hilsen; med
vennlig hilsen; vennlig hilsen; hilsen; bedste hilsner; mange hilsner; tak; takk; vh; ystävällisin terveisin;
parhain terveisin; terveisin; kiitos; yt; z poważaniem; pozdrawiam; serdecznie pozdrawiam; z wyrazami szacunku;
dziękuję; s pozdravem; s přátelským pozdravem; děkuji; с уважением; с наилучшими пожеланиями; всего доброго; всего
наилучшего; спасибо; με εκτίμηση; φιλικά; ευχαριστώ; saygılarımla; saygılarımızla; iyi çalışmalar; teşekkürler; مع
أطيب التحيات; مع خالص التحية; تحياتي; مع التحية; شكرا; بברכה; בברכה; בכבוד רב; תודה; सादर; धन्यवाद; 此致; 敬礼; 此致敬礼;
祝好; 顺颂商祺; 谢谢; 敬具; よろしくお願いいたします; よろしくお願いします;
宜しくお願い致します; 감사합니다; 감사드립니다; 드림; 올림
""")

# Header fields, in other words; a model that writes an e-mail in Spanish writes "Asunto:".
FIELDS: dict[str, str] = {
    name: field
    for field, names in {
        "from": "from; von; de; da; van; från; fra; od; от; 发件人; 寄件者; 差出人; 보낸 사람; kimden",
        "to": "to; an; à; para; aan; till; til; do; кому; 收件人; 收件者; 宛先; 받는 사람; kime",
        "cc": "cc; bcc; kopie; copie; копия; 抄送",
        "subject": """subject; betreff; objet; asunto; oggetto; assunto; onderwerp; ämne; emne; aihe; temat; předmět;
            тема; θέμα; konu; الموضوع; נושא; 主题; 主旨; 件名; 제목""",
        "date": """date; sent; datum; gesendet; envoyé; enviado; fecha; inviato; data; verzonden; skickat; sendt;
            wysłano; отправлено; дата; 发送时间; 日期; 送信日時; 날짜""",
    }.items()
    for name in _phrases(names)
}

# An attribution line: how it starts, and the verb near its end.
WROTE_STARTS = _phrases("""
on; am; le; el; em; il; op; den; w; dne; la; a; på; ti
""")
WROTE = _phrases("""
wrote; writes; schrieb; a écrit; escribió; escreveu; ha scritto; schreef; skrev; napisał; napisał(a); napisała;
pisze; napsal; napsal(a); napsala; a scris; írta; kirjoitti
""")
WROTE_ANYWHERE = (
    "пишет",
    "написал",
    "написала",
    "写道",
    "寫道",
    "のメール",
    "書きました",
    "작성",
    "yazdı",
    "כתב",
    "כתבה",
    "كتب",
)

STREETS = _phrases("""
street; st; road; rd; avenue; ave; lane; ln; drive; dr; boulevard; blvd; way; court; ct; square; sq; suite; ste;
floor; highway; hwy; parkway; pkwy; terrace; place; plaza; building; bldg; rue; quai; chemin; calle; avenida; av;
paseo; rua; via; viale; piazza; corso; weg; platz; allee; gasse; ring; damm; straat; laan; plein; ulica; ul; al; ул;
улица; пр; проспект; gata; gatan; vägen; vej; gade; gate; veien; katu; tie; cad; cd; sok; 路; 街; 号
""")
STREET_ENDINGS = (
    "straße",
    "strasse",
    "str",
    "weg",
    "platz",
    "allee",
    "gasse",
    "straat",
    "laan",
    "gatan",
    "vägen",
    "vej",
    "gade",
    "katu",
)
ABBREVIATIONS = _phrases("""
inc; ltd; co; corp; llc; gmbh; ag; e.v; s.a; s.r.l; s.l; b.v; n.v; jr; sr; ph.d; m.d; dr; prof; st; rd; ave; blvd;
str; mr; mrs; ms; ext; tel; u.s; u.k; u.s.a; d.c; no; dept; a.m; p.m
""")
