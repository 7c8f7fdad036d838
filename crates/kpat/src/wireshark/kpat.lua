-- What the kernel did with a packet, as a tree below the packet and as fields to filter by.
--
-- A post-dissector reads the comments that `kpat export --to pcapng` and kpat's capture interfaces put on packets
-- (a JSON object per packet of the kernel, beginning with {"kpat":1) and nothing else; a dissector reads packets as the
-- kernel held them. For Wireshark and tshark 4.0 to 4.6, Lua 5.2 to 5.4. Installed by `kpat wireshark install`.

local VERSION = 1

-- Installed twice, for the user and for the machine: once is enough.
local free, kpat = pcall(Proto, "kpat", "kpat: way through the kernel")
if not free then
    return
end

local f = {
    seen = ProtoField.string("kpat.seen", "Seen", "wire: a frame of the capture; kernel: as the kernel held it"),
    packet = ProtoField.uint64("kpat.packet", "Packet", base.DEC, nil, nil, "Number of the packet, as kpat counts"),
    what = ProtoField.string("kpat.what", "What"),
    verdict = ProtoField.string("kpat.verdict", "Verdict", "delivered, forwarded, dropped, sent, in-flight, transformed or unknown"),
    drop = ProtoField.string("kpat.drop", "Drop reason", "Name of the kernel's drop reason"),
    path_time = ProtoField.double("kpat.path_time", "Path time", "First to last moment in the kernel, seconds"),
    kernel_time = ProtoField.double("kpat.kernel_time", "Kernel time", "Sum of the self times of its recorded calls, seconds"),
    calls = ProtoField.uint32("kpat.calls", "Calls"),
    points = ProtoField.uint32("kpat.points", "Tracepoints"),
    frames = ProtoField.uint32("kpat.frames", "Frames", base.DEC, nil, nil, "Frames of all captures that are this packet"),
    process = ProtoField.string("kpat.process", "Process"),
    pid = ProtoField.uint32("kpat.pid", "Thread"),
    side = ProtoField.string("kpat.side", "Side", "received or transmitted by the device under test"),
    confidence = ProtoField.uint8("kpat.confidence", "Match confidence", base.DEC, nil, nil, "How sure it is that this frame is that packet, percent"),
    key = ProtoField.string("kpat.key", "Matched by"),
    alternatives = ProtoField.uint32("kpat.alternatives", "Alternatives", base.DEC, nil, nil, "Other packets that fit as well"),
    residual = ProtoField.double("kpat.residual", "Frame less kernel", "Time of the frame less the kernel's, by one clock, seconds"),
    bound = ProtoField.double("kpat.bound", "Clock bound", "How far apart the two clocks may be, plus or minus, seconds"),
    device = ProtoField.string("kpat.device", "Device", "Where the kernel held it"),
    layer = ProtoField.uint8("kpat.layer", "Layer", base.DEC, nil, nil, "Layer at which the logged bytes begin"),
    func = ProtoField.string("kpat.func", "Function", "Function or tracepoint that the packet went through"),
    func_start = ProtoField.double("kpat.func.start", "Entered", "Since the packet's first moment, seconds"),
    func_time = ProtoField.double("kpat.func.time", "Duration", "Entry to return, seconds"),
    func_cpu = ProtoField.uint32("kpat.func.cpu", "CPU"),
    func_context = ProtoField.string("kpat.func.context", "Context", "task, softirq, hardirq or nmi"),
}
local list = {}
for _, field in pairs(f) do
    list[#list + 1] = field
end
kpat.fields = list

local dropped = ProtoExpert.new("kpat.expert.dropped", "The kernel dropped this packet", expert.group.SEQUENCE, expert.severity.WARN)
local ambiguous = ProtoExpert.new("kpat.expert.ambiguous", "Other packets fit this frame as well", expert.group.SEQUENCE, expert.severity.NOTE)
local newer = ProtoExpert.new("kpat.expert.newer", "Written by a newer kpat: run its kpat wireshark install", expert.group.UNDECODED, expert.severity.NOTE)
kpat.experts = { dropped, ambiguous, newer }

local comments = Field.new("frame.comment")

-- JSON, as much of it as a comment can hold. Gives the value and where it ends; an error where it is none.
local NULL = {}
local MOST_DEEP = 8

local function blank(s, at)
    return s:find("[^ \t\r\n]", at) or #s + 1
end

local ESCAPES = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }

local function utf8_of(code)
    if code < 0x80 then
        return string.char(code)
    elseif code < 0x800 then
        return string.char(0xc0 + math.floor(code / 0x40), 0x80 + code % 0x40)
    end
    return string.char(0xe0 + math.floor(code / 0x1000), 0x80 + math.floor(code / 0x40) % 0x40, 0x80 + code % 0x40)
end

local function text(s, at)
    local parts = {}
    at = at + 1
    while true do
        local stop = s:find('["\\]', at) or error("a string has no end")
        parts[#parts + 1] = s:sub(at, stop - 1)
        if s:sub(stop, stop) == '"' then
            return table.concat(parts), stop + 1
        end
        local c = s:sub(stop + 1, stop + 1)
        if c == "u" then
            parts[#parts + 1] = utf8_of(tonumber(s:sub(stop + 2, stop + 5), 16) or 0xfffd)
            at = stop + 6
        else
            parts[#parts + 1] = ESCAPES[c] or c
            at = stop + 2
        end
    end
end

local function value(s, at, deep)
    at = blank(s, at)
    local c = s:sub(at, at)
    if deep > MOST_DEEP then
        error("too deep")
    elseif c == '"' then
        return text(s, at)
    elseif c == "{" or c == "[" then
        local out, close = {}, c == "{" and "}" or "]"
        at = blank(s, at + 1)
        if s:sub(at, at) == close then
            return out, at + 1
        end
        while true do
            local key
            if c == "{" then
                key, at = text(s, blank(s, at))
                at = blank(s, at)
                if s:sub(at, at) ~= ":" then
                    error("no colon")
                end
                at = at + 1
            else
                key = #out + 1
            end
            out[key], at = value(s, at, deep + 1)
            at = blank(s, at)
            local next_c = s:sub(at, at)
            if next_c == close then
                return out, at + 1
            elseif next_c ~= "," then
                error("no comma")
            end
            at = at + 1
        end
    end
    local word = s:match("^[%w%.%+%-]+", at) or error("no value")
    local known = { ["true"] = true, ["false"] = false, null = NULL }
    local v = known[word]
    if v == nil then
        v = tonumber(word) or error("no value")
    end
    return v, at + #word
end

local function parsed(comment)
    local ok, found = pcall(value, comment, 1, 0)
    if ok and type(found) == "table" and type(found.kpat) == "number" then
        return found
    end
end

local function duration(ns)
    local size = math.abs(ns)
    if size < 1000 then
        return string.format("%d ns", ns)
    elseif size < 1000000 then
        return string.format("%.2f µs", ns / 1e3)
    elseif size < 1000000000 then
        return string.format("%.2f ms", ns / 1e6)
    end
    return string.format("%.2f s", ns / 1e9)
end

local function number_or_nil(v)
    return type(v) == "number" and v or nil
end

local function string_or_nil(v)
    return type(v) == "string" and v or nil
end

local function add(tree, field, v)
    if v ~= nil then
        local item = tree:add(field, v)
        item:set_generated()
        return item
    end
end

-- For filters and columns; the line above it says it already.
local function add_unseen(tree, field, v)
    local item = add(tree, field, v)
    if item then
        pcall(function() item.hidden = true end)
    end
end

local function seconds(ns)
    ns = number_or_nil(ns)
    return ns and ns / 1e9
end

local function unsigned(v, most)
    v = number_or_nil(v)
    if v and v >= 0 and v <= most then
        return math.floor(v)
    end
end

-- The calls, each below the one that encloses it.
local function way(tree, note)
    if type(note.path) ~= "table" or #note.path == 0 then
        return
    end
    local top = tree:add(kpat, "Functions, in order")
    top:set_generated()
    local open = {}
    for _, step in ipairs(note.path) do
        local name, depth = string_or_nil(step[1]), unsigned(step[2], 1000)
        if name and depth then
            local above = top
            for d = depth - 1, 0, -1 do
                if open[d] then
                    above = open[d]
                    break
                end
            end
            local item = add(above, f.func, name)
            open[depth] = item
            for d = depth + 1, #open do
                open[d] = nil
            end
            local label = name
            local dur, start = number_or_nil(step[4]), number_or_nil(step[3])
            if dur then
                label = label .. "  " .. duration(dur)
            end
            if start then
                label = label .. string.format("  at +%s", duration(start))
            end
            local where = unsigned(step[5], 65535)
            if where then
                label = label .. string.format("  CPU %d", where)
            end
            if string_or_nil(step[6]) then
                label = label .. " " .. step[6]
            end
            item:set_text(label)
            add_unseen(item, f.func_start, start and start / 1e9)
            add_unseen(item, f.func_time, dur and dur / 1e9)
            add_unseen(item, f.func_cpu, where)
            add_unseen(item, f.func_context, string_or_nil(step[6]))
        end
    end
    local more = unsigned(note.more, 1e9)
    if more and more > 0 then
        local rest = tree:add(kpat, string.format("%d more calls (kpat packet %s has all)", more, tostring(note.packet)))
        rest:set_generated()
        for _, name in ipairs(type(note.also) == "table" and note.also or {}) do
            add(rest, f.func, string_or_nil(name))
        end
    end
end

local function head(note)
    local parts = { string.format("kpat, packet %s", tostring(note.packet)) }
    if note.seen == "kernel" then
        local device = string_or_nil(note.device)
        parts[#parts + 1] = "as the kernel held it" .. (device and device ~= "" and " at " .. device or "")
    end
    if string_or_nil(note.verdict) then
        parts[#parts + 1] = note.verdict .. (string_or_nil(note.drop) and " (" .. note.drop .. ")" or "")
    end
    if number_or_nil(note.path_ns) then
        parts[#parts + 1] = duration(note.path_ns) .. " in the kernel"
    end
    return table.concat(parts, ", ")
end

local function show(tree, tvb, note)
    local top = tree:add(kpat, tvb(0, 0), "")
    top:set_text(head(note))
    top:set_generated()
    if note.kpat > VERSION then
        top:add_proto_expert_info(newer)
    end
    local packet = unsigned(note.packet, 2 ^ 53)
    if packet then
        add(top, f.packet, UInt64.fromhex(string.format("%x", packet)))
    end
    add(top, f.seen, string_or_nil(note.seen))
    add(top, f.what, string_or_nil(note.what))
    add(top, f.verdict, string_or_nil(note.verdict))
    local reason = add(top, f.drop, string_or_nil(note.drop))
    if note.verdict == "dropped" then
        (reason or top):add_proto_expert_info(dropped)
    end
    add(top, f.path_time, seconds(note.path_ns))
    add(top, f.kernel_time, seconds(note.kernel_ns))
    add(top, f.calls, unsigned(note.calls, 0xffffffff))
    add(top, f.points, unsigned(note.points, 0xffffffff))
    add(top, f.frames, unsigned(note.frames, 0xffffffff))
    add(top, f.process, string_or_nil(note.process))
    add(top, f.pid, unsigned(note.pid, 0xffffffff))
    add(top, f.device, string_or_nil(note.device))
    add(top, f.layer, unsigned(note.layer, 255))
    add(top, f.side, string_or_nil(note.side))
    add(top, f.confidence, unsigned(note.match, 255))
    add(top, f.key, string_or_nil(note.key))
    local others = unsigned(note.alternatives, 0xffffffff)
    local item = add(top, f.alternatives, others)
    if others and others > 0 then
        item:add_proto_expert_info(ambiguous)
    end
    add(top, f.residual, seconds(note.residual_ns))
    add(top, f.bound, seconds(note.bound_ns))
    way(top, note)
end

function kpat.dissector(tvb, _, tree)
    for _, comment in ipairs({ comments() }) do
        local value = comment.value
        if type(value) == "string" and value:sub(1, 8) == '{"kpat":' then
            local note = parsed(value)
            if note then
                show(tree, tvb, note)
            end
        end
    end
end

-- A packet as the kernel held it, which is none on a wire: its header fields by names of our own, so that nobody counts it
-- into a connection, a stream or an answer time. The bytes begin with 8 that say what follows.
local held = Proto("kpat.held", "kpat: packet as the kernel held it")
local h = {
    eth_dst = ProtoField.ether("kpat.held.eth_dst", "Destination address"),
    eth_src = ProtoField.ether("kpat.held.eth_src", "Source address"),
    vlan = ProtoField.uint16("kpat.held.vlan", "VLAN", base.DEC, nil, 0x0fff),
    ethertype = ProtoField.uint16("kpat.held.ethertype", "EtherType", base.HEX),
    src = ProtoField.ipv4("kpat.held.src", "Source"),
    dst = ProtoField.ipv4("kpat.held.dst", "Destination"),
    src6 = ProtoField.ipv6("kpat.held.src6", "Source"),
    dst6 = ProtoField.ipv6("kpat.held.dst6", "Destination"),
    ttl = ProtoField.uint8("kpat.held.ttl", "Time to live"),
    id = ProtoField.uint16("kpat.held.id", "Identification", base.HEX),
    tos = ProtoField.uint8("kpat.held.tos", "Type of service", base.HEX),
    length = ProtoField.uint16("kpat.held.len", "Length"),
    proto = ProtoField.uint8("kpat.held.proto", "Protocol"),
    sport = ProtoField.uint16("kpat.held.sport", "Source port"),
    dport = ProtoField.uint16("kpat.held.dport", "Destination port"),
    seq = ProtoField.uint32("kpat.held.seq", "Sequence number"),
    ack = ProtoField.uint32("kpat.held.ack", "Acknowledgment number"),
    flags = ProtoField.uint8("kpat.held.flags", "TCP flags", base.HEX),
    window = ProtoField.uint16("kpat.held.window", "Window"),
    kind = ProtoField.uint8("kpat.held.icmp_type", "ICMP type"),
    code = ProtoField.uint8("kpat.held.icmp_code", "ICMP code"),
    rest = ProtoField.bytes("kpat.held.rest", "Header bytes behind that"),
}
local held_list = {}
for _, field in pairs(h) do
    held_list[#held_list + 1] = field
end
held.fields = held_list

-- Of what is not there as a whole, nothing is shown.
local function part(tree, field, tvb, at, len)
    if at + len <= tvb:len() then
        tree:add(field, tvb(at, len))
        return true
    end
end

local function transport(tree, tvb, at, proto)
    local name
    if proto == 6 or proto == 17 then
        name = proto == 6 and "TCP" or "UDP"
        if not part(tree, h.sport, tvb, at, 2) or not part(tree, h.dport, tvb, at + 2, 2) then
            return name, nil, nil, at
        end
        local sport, dport = tvb(at, 2):uint(), tvb(at + 2, 2):uint()
        if proto == 17 then
            part(tree, h.length, tvb, at + 4, 2)
            return name, sport, dport, at + 8
        end
        part(tree, h.seq, tvb, at + 4, 4)
        part(tree, h.ack, tvb, at + 8, 4)
        part(tree, h.flags, tvb, at + 13, 1)
        part(tree, h.window, tvb, at + 14, 2)
        return name, sport, dport, at + 20
    elseif proto == 1 or proto == 58 then
        part(tree, h.kind, tvb, at, 1)
        part(tree, h.code, tvb, at + 1, 1)
        return proto == 1 and "ICMP" or "ICMPv6", nil, nil, at + 4
    end
    return "IP protocol " .. proto, nil, nil, at
end

-- Words for the column, and where the bytes are that nobody read.
local function network(tree, tvb, at, ethertype)
    local src, dst, proto
    local first = at < tvb:len() and math.floor(tvb(at, 1):uint() / 16) or 0
    local whole
    if ethertype == 0x0800 and first == 4 then
        part(tree, h.tos, tvb, at + 1, 1)
        part(tree, h.length, tvb, at + 2, 2)
        part(tree, h.id, tvb, at + 4, 2)
        part(tree, h.ttl, tvb, at + 8, 1)
        part(tree, h.proto, tvb, at + 9, 1)
        part(tree, h.src, tvb, at + 12, 4)
        whole = part(tree, h.dst, tvb, at + 16, 4)
        if whole then
            src, dst = tostring(tvb(at + 12, 4):ipv4()), tostring(tvb(at + 16, 4):ipv4())
            proto = tvb(at + 9, 1):uint()
            -- Ports stand in the first fragment only.
            local behind = at + 4 * (tvb(at, 1):uint() % 16)
            if tvb(at + 6, 2):uint() % 0x2000 ~= 0 then
                return string.format("IP fragment %s → %s", src, dst), behind
            end
            at = behind
        end
    elseif ethertype == 0x86dd and first == 6 then
        part(tree, h.length, tvb, at + 4, 2)
        part(tree, h.proto, tvb, at + 6, 1)
        part(tree, h.ttl, tvb, at + 7, 1)
        part(tree, h.src6, tvb, at + 8, 16)
        whole = part(tree, h.dst6, tvb, at + 24, 16)
        if whole then
            src, dst = tostring(tvb(at + 8, 16):ipv6()), tostring(tvb(at + 24, 16):ipv6())
            proto = tvb(at + 6, 1):uint()
            at = at + 40
        end
    end
    if not whole then
        return string.format("EtherType 0x%04x", ethertype), at
    end
    local name, sport, dport, behind = transport(tree, tvb, at, proto)
    if sport then
        local form = ethertype == 0x86dd and "[%s]:%d" or "%s:%d"
        src, dst = string.format(form, src, sport), string.format(form, dst, dport)
    end
    return string.format("%s %s → %s", name, src, dst), behind
end

function held.dissector(tvb, pinfo, tree)
    pinfo.cols.protocol = "kernel"
    local top = tree:add(held, tvb(), "As the kernel held it: no packet on a wire")
    if tvb:len() < 8 then
        return
    end
    local layer, ip_proto, device, ethertype =
        tvb(0, 1):uint(), tvb(1, 1):uint(), tvb(2, 2):uint(), tvb(4, 2):uint()
    local words, at = nil, 8
    if layer == 2 and (device == 1 or device == 772) then
        part(top, h.eth_dst, tvb, at, 6)
        part(top, h.eth_src, tvb, at + 6, 6)
        at = at + 12
        while at + 2 <= tvb:len() and (tvb(at, 2):uint() == 0x8100 or tvb(at, 2):uint() == 0x88a8) do
            part(top, h.vlan, tvb, at + 2, 2)
            at = at + 4
        end
        if part(top, h.ethertype, tvb, at, 2) then
            words, at = network(top, tvb, at + 2, tvb(at, 2):uint())
        end
    elseif layer == 3 or layer == 2 and (device == 519 or device == 768 or device == 769 or device == 776 or device == 65534) then
        if ethertype == 0 and at < tvb:len() then
            ethertype = math.floor(tvb(at, 1):uint() / 16) == 6 and 0x86dd or 0x0800
        end
        words, at = network(top, tvb, at, ethertype)
    elseif layer == 4 then
        local name, sport, dport, behind = transport(top, tvb, at, ip_proto)
        words, at = name .. (sport and string.format(" :%d → :%d", sport, dport) or ""), behind
    end
    if at < tvb:len() then
        part(top, h.rest, tvb, at, tvb:len() - at)
    end
    if words then
        pinfo.cols.info = words .. ", as the kernel held it"
    end
end

register_postdissector(kpat)
