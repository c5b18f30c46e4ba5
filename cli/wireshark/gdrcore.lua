-- What gdrcore adds to RoCEv2, for Wireshark and tshark:
--
--   tshark -X lua_script:/usr/share/gdrcore/gdrcore.lua -r FILE.pcap
--
-- DC's packets (docs/internals/DC.md), FLUSH and ATOMIC WRITE (IBTA Annex A19) get names and
-- headers, packets by which an engine asks whether it is reached are told from CNPs, and every
-- packet has the block of its destination: of several processes, or engines, of an address each has
-- blocks of its own (`gdrcore.block == 3`).
--
-- A postdissector: Wireshark's own dissector reads the BTH before it.

local opcode_field = Field.new("infiniband.bth.opcode")
local dest_field = Field.new("infiniband.bth.destqp")

local gdrcore = Proto("gdrcore", "gdrcore over RoCEv2")
local F = gdrcore.fields

local function field(name, make, label, ...)
    F[name] = make("gdrcore." .. name, label, ...)
end

field("name", ProtoField.string, "Operation")
field("block", ProtoField.uint32, "Block of the destination")
field("va", ProtoField.uint64, "Virtual Address", base.HEX)
field("r_key", ProtoField.uint32, "Remote Key", base.HEX)
field("length", ProtoField.uint32, "DMA Length")
field("syndrome", ProtoField.uint8, "Syndrome", base.HEX)
field("msn", ProtoField.uint24, "Message Sequence Number")
field("imm", ProtoField.uint32, "Immediate Data", base.HEX)
field("inv", ProtoField.uint32, "Remote Key to invalidate", base.HEX)
field("swap", ProtoField.uint64, "Swap (or add) data", base.HEX)
field("compare", ProtoField.uint64, "Compare data", base.HEX)
field("original", ProtoField.uint64, "Original data", base.HEX)
field("placement", ProtoField.uint32, "Placement type", base.HEX,
    { [1] = "global visibility", [2] = "persistence", [3] = "both" }, 0x0f)
field("selectivity", ProtoField.uint32, "Selectivity level", base.DEC,
    { [0] = "range", [1] = "memory region" }, 0x30)
field("payload", ProtoField.bytes, "Payload")

local MESSAGES = { "OPEN", "ACCEPT", "REFUSE", "CLOSE", "RECLAIM", "GONE" }
field("dc.type", ProtoField.uint8, "Type", base.DEC, MESSAGES)
field("dc.version", ProtoField.uint8, "Version")
field("dc.flags", ProtoField.uint8, "Flags or reason", base.HEX)
field("dc.mtu", ProtoField.uint8, "Path MTU code")
field("dc.qpn", ProtoField.uint32, "Queue pair", base.HEX)
field("dc.id", ProtoField.uint64, "Association", base.HEX)
field("dc.word", ProtoField.uint64, "Access key or incarnation", base.HEX)
field("dc.time", ProtoField.uint32, "Lease (ms) or wait (us)")
field("dc.depth", ProtoField.uint8, "READs and atomics outstanding")
field("dc.incarnation", ProtoField.uint64, "Incarnation that is known", base.HEX)

-- An extended header: pairs of a field and its bytes. A number alone is bytes without meaning.
local RETH = { "va", 8, "r_key", 4, "length", 4 }
local AETH = { "syndrome", 1, "msn", 3 }
local IMM = { "imm", 4 }
local INV = { "inv", 4 }
local ATOMIC = { "va", 8, "r_key", 4, "swap", 8, "compare", 8 }
local ORIGINAL = { "original", 8 }
local FETH = { "placement", 0, "selectivity", 4 }
local CONTROL = {
    "dc.type", 1, "dc.version", 1, "dc.flags", 1, "dc.mtu", 1, "dc.qpn", 4, "dc.id", 8,
    "dc.word", 8, "dc.time", 4, "dc.depth", 1, 3, "dc.incarnation", 8, 4,
}

-- Opcodes of RC and their extended headers. Those of DC are C0 hex more.
local RC = {
    [0x00] = { "SEND First" }, [0x01] = { "SEND Middle" }, [0x02] = { "SEND Last" },
    [0x03] = { "SEND Last Immediate", IMM }, [0x04] = { "SEND Only" },
    [0x05] = { "SEND Only Immediate", IMM }, [0x06] = { "RDMA WRITE First", RETH },
    [0x07] = { "RDMA WRITE Middle" }, [0x08] = { "RDMA WRITE Last" },
    [0x09] = { "RDMA WRITE Last Immediate", IMM }, [0x0A] = { "RDMA WRITE Only", RETH },
    [0x0B] = { "RDMA WRITE Only Immediate", RETH, IMM },
    [0x0C] = { "RDMA READ Request", RETH }, [0x0D] = { "RDMA READ Response First", AETH },
    [0x0E] = { "RDMA READ Response Middle" }, [0x0F] = { "RDMA READ Response Last", AETH },
    [0x10] = { "RDMA READ Response Only", AETH }, [0x11] = { "Acknowledge", AETH },
    [0x12] = { "Atomic Acknowledge", AETH, ORIGINAL }, [0x13] = { "Compare Swap", ATOMIC },
    [0x14] = { "Fetch Add", ATOMIC }, [0x16] = { "SEND Last Invalidate", INV },
    [0x17] = { "SEND Only Invalidate", INV }, [0x1C] = { "FLUSH", FETH, RETH },
    [0x1D] = { "ATOMIC WRITE", RETH },
}
local DC, XRC, XRCETH, CNP = 0xC0, 0xA0, 4, 0x81
local BTH, ICRC, BLOCK, NAMES_OF_GROUP = 12, 4, 16384, 0xfe0000

-- Name, and extended headers, of an opcode that Wireshark does not know; nil: it does. The third:
-- bytes between the BTH and these headers.
local function known(opcode, dest)
    local function as_rc(service, rc, skipped)
        return service .. " " .. RC[rc][1], { table.unpack(RC[rc], 2) }, skipped
    end
    if opcode == DC + 0x1E then
        return "DC control", { CONTROL }, 0
    elseif opcode >= DC and RC[opcode - DC] then
        return as_rc("DC", opcode - DC, 0)
    elseif opcode == 0x1C or opcode == 0x1D then
        return as_rc("RC", opcode, 0)
    elseif opcode == XRC + 0x1C or opcode == XRC + 0x1D then
        return as_rc("XRC", opcode - XRC, XRCETH)
    elseif opcode == CNP and dest >= NAMES_OF_GROUP then
        return "Engine probe", {}, 0
    end
end

-- Adds the headers to the tree, and returns the offset behind them.
local function headers_into(tree, tvb, at, headers, last)
    for _, header in ipairs(headers) do
        local i = 1
        while i <= #header do
            local name, bytes = header[i], header[i + 1]
            if type(name) == "number" then
                at, i = at + name, i + 1
            else
                local long = bytes == 0 and 4 or bytes
                if at + long > last then return last end
                tree:add(F[name], tvb(at, long))
                at, i = at + bytes, i + 2
            end
        end
    end
    return at
end

function gdrcore.dissector(tvb, pinfo, root)
    local opcode, dest = opcode_field(), dest_field()
    if not opcode or not dest then return end
    local to = dest.value
    local tree = root:add(gdrcore, tvb(opcode.offset, math.min(BTH, tvb:len() - opcode.offset)))
    tree:add(F.block, math.floor(to / BLOCK)):set_generated()
    local name, headers, skipped = known(opcode.value, to)
    if not name then return end
    local last = tvb:len() - ICRC
    local at = opcode.offset + BTH + skipped
    if headers[1] == CONTROL and at < last then
        name = "DC " .. (MESSAGES[tvb(at, 1):uint()] or name)
    end
    tree:add(F.name, name):set_generated()
    at = headers_into(tree, tvb, at, headers, last)
    if at < last then tree:add(F.payload, tvb(at, last - at)) end
    pinfo.cols.info = string.format("%s QP=0x%06x", name, to)
end

register_postdissector(gdrcore)
